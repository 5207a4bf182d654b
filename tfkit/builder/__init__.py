"""Graph and catalogue -> Model: modules, parameters, backends, initialisation."""

from .assemble import build
from .initialisation import fill, initialise
from .memory import check_fits, materialise

__all__ = ["build", "check_fits", "fill", "initialise", "materialise"]
