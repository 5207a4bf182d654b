"""Models in directories."""

from .layout import model_in
from .loading import load, other_files
from .saving import save

__all__ = ["load", "model_in", "other_files", "save"]
