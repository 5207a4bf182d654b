"""Score function: how well a query fits a key. `dot` is scale * q.k and part of the attention contract; others (additive,
general, concat: the RNN lineage) must be declared by the backend that can compute them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .options import Entry
from .parameter import Parameter


@dataclass(frozen=True)
class ScoreSite:
    """Where a score function acts: `heads` heads of `head_dim` features each."""

    heads: int
    head_dim: int


@dataclass(frozen=True, kw_only=True)
class ScoreFunction(Entry):
    """`parameters(options, site)` lists its weights; `build(options, site)` gives a module
    `(query (B,H,Q,D), key (B,G,K,D)) -> (B,H,Q,K)`, or None for the contract's own dot product."""

    parameters: Callable[[Any, ScoreSite], tuple[Parameter, ...]] = lambda options, site: ()
    build: str | None = None
