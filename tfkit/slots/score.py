"""Score function: how well a query fits a key. `dot` is scale * q.k and part of the attention contract; others (additive,
general, concat: the RNN lineage) must be declared by the backend that can compute them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .cost import Cost, Sizes
from .options import Entry
from .parameter import Parameter


@dataclass(frozen=True)
class ScoreSite:
    """Where a score function acts: `heads` heads of `head_dim` features each."""

    heads: int
    head_dim: int


def dot_cost(options: Any, site: ScoreSite, kv_heads: int, sizes: Sizes) -> Cost:
    """q.k for every pair: 2 B H Q K D; no more than the query and the key is kept, which the projections count."""
    return Cost("attention", 2 * sizes.batch * site.heads * sizes.queries * sizes.keys * site.head_dim, 0)


@dataclass(frozen=True, kw_only=True)
class ScoreFunction(Entry):
    """`parameters(options, site)` lists its weights; `build(options, site)` gives a module
    `(query (B,H,Q,D), key (B,G,K,D)) -> (B,H,Q,K)`, or None for the contract's own dot product.
    `costs(options, site, kv_heads, sizes)` is what the scores cost."""

    costs: Callable[[Any, ScoreSite, int, Sizes], Cost] = dot_cost
    parameters: Callable[[Any, ScoreSite], tuple[Parameter, ...]] = lambda options, site: ()
    build: str | None = None
