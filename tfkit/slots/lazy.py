"""`"module:function"` strings, imported when first used, so that listing plugins imports neither torch nor a kernel."""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from ..errors import Diagnostic, PluginError


@cache
def load(reference: str) -> Any:
    """Import an object.

    Args:
        reference: `"module:name"`.

    Raises:
        PluginError: it cannot be imported, with the reason.
    """
    module, _, name = reference.partition(":")
    try:
        return getattr(import_module(module), name)
    except Exception as reason:  # an import of a plugin may raise anything
        message = f"`{reference}` cannot be imported: {type(reason).__name__}: {reason}"
        fix = f"reinstall what provides `{module.partition('.')[0]}`, or choose another part"
        raise PluginError(Diagnostic("TFK053", message, fix)) from reason
