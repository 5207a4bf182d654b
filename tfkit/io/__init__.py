"""Models in directories. Importing this imports no torch; `load` and `save` do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy_names import lazy_names

if TYPE_CHECKING:
    from .layout import model_in as model_in
    from .loading import load as load
    from .saved_files import SavedFiles as SavedFiles, other_files as other_files, read_saved as read_saved
    from .saving import save as save

__getattr__, __dir__, __all__ = lazy_names(__name__)
