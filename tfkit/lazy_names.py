"""Public names of a module that are imported when first used, so that importing the module imports neither torch nor a plugin.

The module lists its names once, as imports that only type checkers do:

    if TYPE_CHECKING:
        from .builder import build as build

    __getattr__, __dir__, __all__ = lazy_names(__name__)
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from typing import Any


def lazy_names(
    module: str, defined: tuple[str, ...] = (), computed: dict[str, Callable[[], Any]] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The `__getattr__`, `__dir__` and `__all__` of a module.

    Args:
        module: `__name__` of the module that calls. Its names are read from its source.
        defined: further public names that the module defines itself.
        computed: further names, with the function that returns the value.
    """
    homes = _imports_for_types(module)
    values = computed or {}
    listed = sorted({*homes, *defined, *(name for name in values if not name.startswith("__"))})

    def get(name: str) -> Any:
        if name in values:
            return values[name]()
        if name not in homes:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, its_name = homes[name]
        return getattr(import_module(home, sys.modules[module].__package__), its_name)

    def listing() -> list[str]:
        return sorted({*(name for name in vars(sys.modules[module]) if name.startswith("__")), *listed, *values})

    return get, listing, listed


def _imports_for_types(module: str) -> dict[str, tuple[str, str]]:
    """By name, the module that holds it and its name there, of the imports under `if TYPE_CHECKING:`."""
    spec = find_spec(module)
    source = spec.loader.get_source(module) if spec and spec.loader else None  # type: ignore[attr-defined]
    if source is None:
        raise ImportError(f"the public names of {module} are listed in its source, which is not installed")
    return {
        name.asname: ("." * statement.level + (statement.module or ""), name.name)
        for block in ast.parse(source).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for name in statement.names
        if name.asname
    }
