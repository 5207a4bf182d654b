"""Weights in and out: models of other libraries to tfkit's, and tfkit's models to other engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_names import lazy_names

if TYPE_CHECKING:
    from .export import export

_HOMES = {"tfkit.interop.export": ("export",)}

__all__ = ["export"]

__getattr__, __dir__ = lazy_names(__name__, _HOMES, __all__)
