"""Names of a module that are imported when first used, so that importing the module imports neither torch nor a plugin."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from typing import Any


def lazy_names(
    module: str, homes: Mapping[str, Sequence[str]], listed: Sequence[str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """The functions `__getattr__` and `__dir__` of a module.

    Args:
        module: the name of the module, `__name__`.
        homes: for each full module name, the names that it holds.
        listed: the `__all__` of the module.

    Returns:
        Both functions.
    """

    def get(name: str) -> Any:
        for home, names in homes.items():
            if name in names:
                return getattr(import_module(home), name)
        raise AttributeError(f"module {module!r} has no attribute {name!r}")

    def listing() -> list[str]:
        return sorted({*(name for name in vars(import_module(module)) if name.startswith("__")), *listed})

    return get, listing
