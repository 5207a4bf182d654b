"""Formulas of parts and of whole models in plain torch, written from the papers: what tfkit's own modules are checked against.

Nothing here imports a module of tfkit that computes. `evaluate` evaluates a model; `formula` finds the formula of a part.
"""

from . import nodes, sublayers
from .evaluation import Evaluation, evaluate
from .formulas import BUILT_IN, GATED, Unchecked, formula
from .placements import LayerFunctions

__all__ = ["BUILT_IN", "GATED", "Evaluation", "LayerFunctions", "Unchecked", "evaluate", "formula", "nodes", "sublayers"]
