"""Score function of a query and a key. `dot` is scale * q.k and part of the attention contract. A backend declares the other
functions that it can compute (additive, concat: those of RNN encoder-decoders).

A score has two steps, score(q, map_keys(k)), so that a decoder maps the keys of its memory once and not at every step.
"""

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
        head_dim: features of a query D.
        key_dim: features of a key; as many as a query has unless given.
    """

    heads: int
    head_dim: int
    key_dim: int = 0

    @property
    def key_features(self) -> int:
        """Features of a key."""
        return self.key_dim or self.head_dim


def dot_cost(options: Any, site: ScoreSite, kv_heads: int, sizes: Sizes) -> Cost:
    """q.k for every pair: 2 B H Q K D. The backward pass needs only query and key, which the projections count."""
    return Cost("attention", 2 * sizes.batch * site.heads * sizes.queries * sizes.keys * site.head_dim, 0)


@dataclass(frozen=True, kw_only=True)
class ScoreFunction(Entry):
    """A score function.

    Args:
        costs: `costs(options, site, kv_heads, sizes)` is the cost of the scores.
        parameters: `parameters(options, site)` lists its weights.
        build: `"module:function"`, called as `build(options, site)`. It returns an `nn.Module` with
            `map_keys(key (B,G,K,key_dim)) -> (B,G,K,E)` and `forward(query (B,H,Q,D), mapped (B,G,K,E)) -> (B,H,Q,K)`.
            None: the dot product of the contract.
        dot: `forward` is the dot product (E = D, scale 1), so that every backend can compute it.
        formula: `"module:function"`, the plain equation that it is checked against, called as
            `formula(options, weights, query (B,H,Q,D), key (B,H,K,key_dim)) -> (B,H,Q,K)`.
    """

    costs: Callable[[Any, ScoreSite, int, Sizes], Cost] = dot_cost
    parameters: Callable[[Any, ScoreSite], tuple[Parameter, ...]] = lambda options, site: ()
    build: str | None = None
    dot: bool = False
    formula: str = ""
