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
    """What a distribution may depend on besides the parameter: `d_model`, the layers of its own stack (0 outside one),
    and the size of one attention head (0 outside attention)."""

    d_model: int
    num_layers: int = 0
    head_dim: int = 0


@dataclass(frozen=True, kw_only=True)
class Initialiser(Entry):
    """`draw(options, parameter, context)` names a distribution. A placement's gain for the role multiplies its spread."""

    draw: Callable[[Any, Parameter, InitContext], Distribution]
