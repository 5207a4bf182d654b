"""`tfkit eject`: a model as one readable file of PyTorch.

Every part of a model has a Jinja template of its source code, named by `source` of its entry. This package chooses names and
sizes, and puts the texts together. Nothing here imports torch.
"""

from .program import eject

__all__ = ["eject"]
