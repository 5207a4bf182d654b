"""Position scheme: how a model knows the order of its tokens. It acts in one or more of three places:

    embeddings     x + p(position), before the first layer                     (sinusoidal, learned)
    queries_keys   q, k -> R(position) q, R(position) k, before the scores      (rotary)
    scores         + bias(key position - query position), after the scale       (ALiBi, T5, Shaw)

Schemes that act on queries and keys or on scores act on self-attention, and on cross-attention only where a spec says so.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from .options import Entry
from .parameter import Parameter

Place = Literal["embeddings", "queries_keys", "scores"]
Tables = Literal["none", "stack", "layer"]

USUAL_CLAIMS: dict[str, frozenset[str]] = {
    "embeddings": frozenset({"additive"}),
    "queries_keys": frozenset({"relative", "rotation"}),
    "scores": frozenset({"relative_bias"}),
}
"""The claims of a scheme in each place, unless it makes others.

additive         embed(x) - x does not depend on x
relative         the product of a query and a key depends on their positions through the difference alone
rotation         vectors keep the lengths they have at position 0, which multiplies each feature by a constant
relative_bias    the bias depends on positions through key position - query position alone
"""


@dataclass(frozen=True)
class PositionSite:
    """Where a scheme acts.

    The layers of a stack share a scheme whose `tables` are not `layer`, even if their heads differ in width. If such a scheme
    acts on scores alone and does not read the query, its `head_dim` is 0: parameters and module must not depend on it.

    Args:
        width: d_model.
        heads: query heads H, 0 for embeddings.
        head_dim: features per head D, 0 for embeddings.
        rows: number of positions if the input fixes it (patches of an image), else None.
        causal: keys after the query are hidden, so that only distances <= 0 occur.
        cross: cross-attention.
    """

    width: int
    heads: int = 0
    head_dim: int = 0
    rows: int | None = None
    causal: bool = False
    cross: bool = False


@dataclass(frozen=True, kw_only=True)
class PositionScheme(Entry):
    """A position scheme, as a plugin registers it.

    Args:
        acts: the places where it acts.
        build: `"module:function"`, called as `build(options, site)`; returns an `nn.Module` with the methods of
            `tfkit.attention.positions` that its places need.
        tables: `tables(options)` tells who owns its weights: `none`, one table per `stack`, or one per `layer`.
        parameters: `parameters(options, site)` lists its weights.
        unsupported: `unsupported(options, site)` returns reasons why it cannot act there.
        flops: `flops(options, site, batch, queries, keys)` counts its floating-point operations.
        bias_kinds: kinds of bias that it gives to attention: `dense`, `linear`, `distance`.
        reads_query: the bias depends on the query, so layers cannot share it.
        max_len: `max_len(options)` is the number of positions it can represent, None for any number.
        counts_padding: `counts_padding(options)` is True if padding before a token changes the token's position.
        claims: `claims(options)` returns the laws of `USUAL_CLAIMS` that hold, if they are not the usual ones of its places;
            `tfkit conformance` checks them.
        same_as: the built-in scheme with the same equation and options; `tfkit conformance` compares both.
    """

    acts: frozenset[Place]
    build: str
    tables: Callable[[Any], Tables] = lambda options: "none"
    parameters: Callable[[Any, PositionSite], tuple[Parameter, ...]] = lambda options, site: ()
    unsupported: Callable[[Any, PositionSite], tuple[str, ...]] = lambda options, site: ()
    flops: Callable[[Any, PositionSite, int, int, int], int] = lambda options, site, batch, queries, keys: 0
    bias_kinds: frozenset[str] = frozenset()
    reads_query: bool = False
    max_len: Callable[[Any], int | None] = lambda options: None
    counts_padding: Callable[[Any], bool] = lambda options: False
    claims: Callable[[Any], frozenset[str]] | None = None
    same_as: str = ""

    def claimed(self, options: Any) -> frozenset[str]:
        """The laws of `USUAL_CLAIMS` that hold for these options."""
        if self.claims is not None:
            return self.claims(options)
        return frozenset().union(*(USUAL_CLAIMS[place] for place in self.acts))
