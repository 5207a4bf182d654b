"""The entries of the built-in score functions: names, options and weights.

All heads share the weights. The vector v of `additive` and `concat` is stored as a linear map, (1, d_score).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ...plugin import NoOptions, Options, Parameter, ScoreFunction, Size
from ...slots.cost import Cost, Sizes
from ...slots.score import ScoreSite


class HiddenOptions(Options):
    """Options of the scores that have a hidden layer, `additive` and `concat`."""

    d_score: Annotated[Size | None, Field(description="width of the hidden layer; head_dim unless written")] = None


def additive_parameters(options: HiddenOptions, site: ScoreSite) -> tuple[Parameter, ...]:
    hidden = options.d_score or site.head_dim
    return (
        Parameter("query.weight", "score_query", (hidden, site.head_dim)),
        Parameter("key.weight", "score_key", (hidden, site.key_features)),
        Parameter("out.weight", "score_out", (1, hidden)),
    )


def general_parameters(options: NoOptions, site: ScoreSite) -> tuple[Parameter, ...]:
    return (Parameter("weight", "score_weight", (site.head_dim, site.key_features)),)


def concat_parameters(options: HiddenOptions, site: ScoreSite) -> tuple[Parameter, ...]:
    hidden = options.d_score or site.head_dim
    return (
        Parameter("weight", "score_weight", (hidden, site.head_dim + site.key_features)),
        Parameter("out.weight", "score_out", (1, hidden)),
    )


def hidden_cost(options: HiddenOptions, site: ScoreSite, kv_heads: int, sizes: Sizes) -> Cost:
    """One projection to d_score features per query and key, which the backward pass needs, and one product with v per pair.

    The hidden features of a pair are computed again in the backward pass.
    """
    hidden = options.d_score or site.head_dim
    B, Q, K, D, H = sizes.batch, sizes.queries, sizes.keys, site.head_dim, site.heads
    pairs = B * H * Q * K * hidden
    maps = 2 * B * (H * Q * D + kv_heads * K * site.key_features) * hidden
    return Cost("attention", maps + 2 * pairs, B * H * (Q + K) * hidden)


def general_cost(options: NoOptions, site: ScoreSite, kv_heads: int, sizes: Sizes) -> Cost:
    """One product with W per key, then q.k for every pair. The backward pass needs the mapped keys."""
    B, Q, K, D, H = sizes.batch, sizes.queries, sizes.keys, site.head_dim, site.heads
    return Cost("attention", 2 * B * kv_heads * K * D * site.key_features + 2 * B * H * Q * K * D, B * kv_heads * K * D)


ENTRIES: list[ScoreFunction] = [
    ScoreFunction(
        name="dot",
        summary="the scaled dot product of query and key",
        reference="https://arxiv.org/abs/1706.03762",
        dot=True,
    ),
    ScoreFunction(
        name="additive",
        summary="v . tanh(W q + U k)",
        reference="https://arxiv.org/abs/1409.0473",
        options=HiddenOptions,
        parameters=additive_parameters,
        costs=hidden_cost,
        build="tfkit.builtin.score.scores:additive",
        source="tfkit.builtin.score:scores.py.jinja",
    ),
    ScoreFunction(
        name="general",
        summary="q . W k",
        reference="https://arxiv.org/abs/1508.04025",
        parameters=general_parameters,
        costs=general_cost,
        dot=True,
        build="tfkit.builtin.score.scores:general",
        source="tfkit.builtin.score:scores.py.jinja",
    ),
    ScoreFunction(
        name="concat",
        summary="v . tanh(W [q; k])",
        reference="https://arxiv.org/abs/1508.04025",
        options=HiddenOptions,
        parameters=concat_parameters,
        costs=hidden_cost,
        build="tfkit.builtin.score.scores:concat",
        source="tfkit.builtin.score:scores.py.jinja",
    ),
]
