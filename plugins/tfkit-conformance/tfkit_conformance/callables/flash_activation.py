"""Activates an implementation of flash attention in torch's registry, which changes what torch's own functions run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from tfkit import Diagnostic, InputError

from .locate import CODE, imported, nearest

OPTION = "--flash-implementation"


@contextmanager
def flash_implementation_active(name: str | None) -> Iterator[None]:
    """A context in which torch's functions use an implementation of flash attention. Afterwards torch's own is back.

    Args:
        name: a registered name, such as FA3, or "module:NAME" for a module that registers it; None changes nothing.

    Raises:
        InputError: torch has no implementation of this name, no such module exists, or it cannot be activated here.
    """
    if name is None:
        yield
        return
    from torch.nn import attention

    activate: Any = getattr(attention, "activate_flash_attention_impl", None)
    if activate is None:
        message = f"{OPTION}: this torch has one implementation of flash attention, its own"
        raise InputError(Diagnostic(CODE, message, "install torch 2.10 or newer"))
    module, colon, impl = name.rpartition(":")
    if colon:
        imported(OPTION, module)
    known = attention.list_flash_attention_impls()
    if impl not in known:
        message = f"{OPTION}: torch has no implementation of flash attention `{impl}`"
        own = "" if colon else "to use your own, name the module that registers it, as MODULE:NAME; "
        raise InputError(Diagnostic(CODE, message, own + nearest(impl, known, "implementations")))
    try:
        activate(impl)
    except Exception as reason:  # whatever its author's function raises is the answer
        said = " ".join(str(reason).split())[:300]
        message = f"{OPTION}: activating {impl} raised {type(reason).__name__}: {said}"
        raise InputError(Diagnostic(CODE, message, "install its package, on a machine with its device")) from None
    try:
        yield
    finally:
        attention.restore_flash_attention_impl()
