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
"""What a scheme is held to in each place unless it says otherwise.

additive         embed(x) - x does not depend on x
relative         the product of a query and a key depends on their positions through the difference alone
rotation         vectors keep the lengths they have at position 0, which multiplies each feature by a constant
relative_bias    the bias depends on positions through key position - query position alone
"""


@dataclass(frozen=True)
class PositionSite:
    """Where a scheme acts. `width` is d_model; `heads` and `head_dim` are 0 for embeddings; `rows` is the number of
    positions where the input fixes it (the patches of an image), else None; `causal` says that keys after the query are
    hidden, so that only distances <= 0 occur; `cross` marks cross-attention.

    The layers of a stack share a scheme whose `tables` are not `layer`, though their heads may differ in width. One that acts
    on scores alone and does not read the query is asked for its parameters and built with `head_dim` 0 then: neither may
    depend on it."""

    width: int
    heads: int = 0
    head_dim: int = 0
    rows: int | None = None
    causal: bool = False
    cross: bool = False


@dataclass(frozen=True, kw_only=True)
class PositionScheme(Entry):
    """`acts` lists the places. `tables(options)` says who owns its weights: nobody, one table per stack, or one per layer.
    `unsupported(options, site)` gives the reasons why it cannot act there, in words with numbers. `build`, a
    `"module:function"`, is called as `build(options, site)` and gives an `nn.Module` with the methods of
    `tfkit.attention.positions` that its places need. `bias_kinds` names the bias it hands to attention (`dense`, `linear`,
    `distance`); `reads_query` says that this bias depends on the query, so that layers cannot share it.
    `max_len(options)` is the number of positions that it can tell apart, or None for any; `counts_padding(options)` says that
    padding before a token changes what it does to the token.
    `claims(options)` names the laws of `USUAL_CLAIMS` that it obeys, where these are not the usual ones of its places;
    `same_as` names the built-in scheme whose equation and options it shares: `tfkit conformance` holds it to both.
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
