"""Weights in and out: models of other libraries to tfkit's, and tfkit's models to other engines."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_names import lazy_names

if TYPE_CHECKING:
    from .torch_modules import from_torch as from_torch

__getattr__, __dir__, __all__ = lazy_names(__name__)
