"""Initialiser: from which distribution each parameter is drawn, by its role."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from .options import Entry
from .parameter import Parameter


@dataclass(frozen=True)
class Distribution:
    """`normal` with mean `centre` and standard deviation `spread`; `uniform` on centre -+ spread; `truncated_normal`, cut at
    two standard deviations; or `constant`, every element `centre`."""

    kind: Literal["normal", "uniform", "truncated_normal", "constant"]
    centre: float = 0.0
    spread: float = 0.0


@dataclass(frozen=True)
class InitContext:
    """What a distribution may depend on besides the parameter.

    Args:
        d_model: width of the node's input.
        num_layers: layers of the parameter's stack, 0 outside of a stack.
        head_dim: features per attention head, 0 outside of attention.
    """

    d_model: int
    num_layers: int = 0
    head_dim: int = 0


@dataclass(frozen=True, kw_only=True)
class Initialiser(Entry):
    """An initialiser, as a plugin registers it.

    Args:
        draw: `draw(options, parameter, context)` returns the distribution of a parameter. The placement's gain for the
            parameter's role multiplies its spread.
    """

    draw: Callable[[Any, Parameter, InitContext], Distribution]
