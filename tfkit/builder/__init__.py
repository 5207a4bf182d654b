"""Graph and catalogue -> Model: modules, parameters, backends, initialisation."""

from .assemble import build
from .initialisation import check_fits, fill, initialise, materialise

__all__ = ["build", "check_fits", "fill", "initialise", "materialise"]
