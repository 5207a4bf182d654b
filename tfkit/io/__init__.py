"""Models in directories. Importing this imports no torch; `load` and `save` do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_names import lazy_names
from .layout import model_in
from .saved_files import SavedFiles, other_files, read_saved

if TYPE_CHECKING:
    from .loading import load
    from .saving import save

__all__ = ["SavedFiles", "load", "model_in", "other_files", "read_saved", "save"]

_IMPORTS_TORCH = {
    "tfkit.io.loading": ("load",),
    "tfkit.io.saving": ("save",),
}
__getattr__, __dir__ = lazy_names(__name__, _IMPORTS_TORCH, __all__)
