"""Position scheme: how a model represents the order of its tokens. It acts in one or more of three places:

    embeddings     x + p(position) or [x; p(position)], before the first layer (sinusoidal, learned); written at a stack,
                   x + p(position) before every layer
    queries_keys   q, k -> R(position) q, R(position) k, before the scores      (rotary)
    scores         + bias(key position - query position), after the scale       (ALiBi, T5, Shaw)

Schemes for queries and keys or for scores act on self-attention, and on cross-attention only if the spec gives it a scheme.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
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
"""The laws that a scheme obeys in each place, unless its `claims` differ.

additive         embed(x) - x does not depend on x
relative         the product of a query and a key depends only on the difference of their positions
rotation         the length of a vector is the same at all positions; position 0 multiplies each feature by a constant
relative_bias    the bias depends only on key position - query position
"""


@dataclass(frozen=True)
class PositionSite:
    """Where a scheme acts.

    Args:
        width: d_model.
        heads: query heads H; 0 for embeddings.
        head_dim: head dimension D; 0 for embeddings. It is also 0 for a scheme that acts only on scores, does not read the
            query and is shared by the layers of a stack, because their heads may differ in width.
        rows: the number of positions if the input fixes it (the patches of an image), else None.
        grid: the patches of an image, in rows and columns; None for other inputs.
        prefix: positions before those of the grid (a class token).
        causal: later keys are hidden, so that only distances <= 0 occur.
        cross: cross-attention.
    """

    width: int
    heads: int = 0
    head_dim: int = 0
    rows: int | None = None
    causal: bool = False
    cross: bool = False
    grid: tuple[int, int] | None = None
    prefix: int = 0


@dataclass(frozen=True, kw_only=True)
class PositionScheme(Entry):
    """A position scheme.

    Args:
        acts: the places where it acts.
        build: `"module:function"`, called as `build(options, site)`. It returns an `nn.Module` with the methods of
            `tfkit.attention.positions` that its places need.
        tables: `tables(options)`: it has no weights, one table per stack, or one per layer.
        parameters: `parameters(options, site)` lists its weights.
        unsupported: `unsupported(options, site)` gives the reasons, with numbers, why it cannot act there.
        flops: `flops(options, site, batch, queries, keys)`.
        widens: `widens(options, site)` is the number of features that it appends to embeddings.
        bias_kinds: the kinds of bias that it gives to attention: `dense`, `linear`, `distance`.
        reads_query: the bias depends on the query, so that layers cannot share it.
        max_len: `max_len(options)` is the number of its positions; None: no limit.
        counts_padding: `counts_padding(options)`: padding before a token changes its position.
        row_positions: its methods take positions by row: `query_positions()` and `key_positions()` are then (B, L). Calls with
            positions of their own, or with several documents in a row, need it.
        claims: `claims(options)` gives the laws of `USUAL_CLAIMS` that it obeys, if they are not the usual ones of its places;
            `tfkit conformance` checks them.
        same_as: the built-in scheme with the same equation and options; `tfkit conformance` compares them.
        formulas: by place, `"module:function"`, the plain equation that the scheme is checked against, called as

                embeddings     formula(options, site, weights, x (B,L,M), positions (B,L)) -> (B,L,W)
                queries_keys   formula(options, site, weights, x (B,H,L,D), positions (L,)) -> (B,H,L,D)
                scores         formula(options, site, weights, query (B,H,Q,D), distances (Q,K), scale) -> (B,H,Q,K)

            A distance is the key's position less the query's.
    """

    acts: frozenset[Place]
    build: str
    tables: Callable[[Any], Tables] = lambda options: "none"
    parameters: Callable[[Any, PositionSite], tuple[Parameter, ...]] = lambda options, site: ()
    unsupported: Callable[[Any, PositionSite], tuple[str, ...]] = lambda options, site: ()
    flops: Callable[[Any, PositionSite, int, int, int], int] = lambda options, site, batch, queries, keys: 0
    widens: Callable[[Any, PositionSite], int] = lambda options, site: 0
    bias_kinds: frozenset[str] = frozenset()
    reads_query: bool = False
    max_len: Callable[[Any], int | None] = lambda options: None
    counts_padding: Callable[[Any], bool] = lambda options: False
    row_positions: bool = False
    claims: Callable[[Any], frozenset[str]] | None = None
    same_as: str = ""
    formulas: Mapping[Place, str] = field(default_factory=dict)

    def claimed(self, options: Any) -> frozenset[str]:
        """The claimed laws.

        Args:
            options: the options of the scheme.

        Returns:
            The laws of `USUAL_CLAIMS` that hold for these options.
        """
        if self.claims is not None:
            return self.claims(options)
        return frozenset().union(*(USUAL_CLAIMS[place] for place in self.acts))
