"""Graph and catalogue -> Model: modules, parameters, backends, initialisation."""

from .assemble import build
from .initialisation import fill, initialise, materialise

__all__ = ["build", "fill", "initialise", "materialise"]
