"""Initialiser: the distribution of each initial parameter, by its role."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from .options import Entry
from .parameter import Parameter


@dataclass(frozen=True)
class Distribution:
    """The distribution of the initial values of a parameter.

    Args:
        kind: `normal`; `uniform` on centre -+ spread; `truncated_normal`, at two standard deviations; `constant`, every element
            `centre`; or `orthogonal`: each square block of rows of a matrix (gates * N, N) is an orthogonal matrix.
        spread: the standard deviation of the untruncated normal distribution, half the width of the uniform one, or the factor
            of the orthogonal matrices.
    """

    kind: Literal["normal", "uniform", "truncated_normal", "constant", "orthogonal"]
    centre: float = 0.0
    spread: float = 0.0


@dataclass(frozen=True)
class InitContext:
    """The sizes that a distribution may depend on.

    Args:
        d_model: width of the node's input.
        num_layers: number of layers of the stack; 0 outside a stack.
        head_dim: features of one attention head; 0 outside attention.
        fan_in: of a bias, the features that its linear map reads; of a recurrent cell, those of its state; otherwise 0.
    """

    d_model: int
    num_layers: int = 0
    head_dim: int = 0
    fan_in: int = 0


@dataclass(frozen=True, kw_only=True)
class Initialiser(Entry):
    """An initialiser.

    Args:
        draw: `draw(options, parameter, context)` gives the distribution of a parameter. The gain of the placement for its role
            multiplies the spread.
    """

    draw: Callable[[Any, Parameter, InitContext], Distribution]
