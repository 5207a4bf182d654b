"""Models in directories."""

from .layout import model_in
from .loading import load
from .saving import save

__all__ = ["load", "model_in", "save"]
