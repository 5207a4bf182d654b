"""Initialiser: the distribution of each initial parameter, by its role."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from .options import Entry
from .parameter import Parameter


@dataclass(frozen=True)
class Distribution:
    """`normal` with mean `centre` and standard deviation `spread`; `uniform` on centre -+ spread; `truncated_normal`, cut at
    two standard deviations; `constant`, every element `centre`; or `orthogonal`: each square block of rows of a matrix
    (gates * N, N) is an orthogonal matrix, times `spread`."""

    kind: Literal["normal", "uniform", "truncated_normal", "constant", "orthogonal"]
    centre: float = 0.0
    spread: float = 0.0


@dataclass(frozen=True)
class InitContext:
    """What a distribution may depend on besides the parameter: `d_model`, the number of layers of its stack (0 outside a
    stack), and the size of one attention head (0 outside attention)."""

    d_model: int
    num_layers: int = 0
    head_dim: int = 0


@dataclass(frozen=True, kw_only=True)
class Initialiser(Entry):
    """An initialiser.

    Args:
        draw: `draw(options, parameter, context)` gives the distribution of a parameter. The gain of the placement for its role
            multiplies the spread.
    """

    draw: Callable[[Any, Parameter, InitContext], Distribution]
