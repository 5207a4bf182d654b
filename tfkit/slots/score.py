"""Score function of a query and a key. `dot` is scale * q.k and part of the attention contract. A backend declares the other
functions that it can compute (additive, general, concat: those of RNN encoder-decoders)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .cost import Cost, Sizes
from .options import Entry
from .parameter import Parameter


@dataclass(frozen=True)
class ScoreSite:
    """The heads that a score function acts on.

    Args:
        heads: query heads H.
        head_dim: features per head D.
    """

    heads: int
    head_dim: int


def dot_cost(options: Any, site: ScoreSite, kv_heads: int, sizes: Sizes) -> Cost:
    """q.k for every pair: 2 B H Q K D. The backward pass needs only query and key, which the projections count."""
    return Cost("attention", 2 * sizes.batch * site.heads * sizes.queries * sizes.keys * site.head_dim, 0)


@dataclass(frozen=True, kw_only=True)
class ScoreFunction(Entry):
    """A score function.

    Args:
        costs: `costs(options, site, kv_heads, sizes)` is the cost of the scores.
        parameters: `parameters(options, site)` lists its weights.
        build: `"module:function"`, called as `build(options, site)`. It returns a module
            `(query (B,H,Q,D), key (B,G,K,D)) -> (B,H,Q,K)`. None: the dot product of the contract.
    """

    costs: Callable[[Any, ScoreSite, int, Sizes], Cost] = dot_cost
    parameters: Callable[[Any, ScoreSite], tuple[Parameter, ...]] = lambda options, site: ()
    build: str | None = None
