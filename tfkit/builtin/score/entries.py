"""What the built-in score functions are called, which options they take and which weights they have.

All heads share the weights. A vector that ends in one number per pair is stored as the linear map it is, (1, d_score).
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ...plugin import NoOptions, Options, Parameter, ScoreFunction, ScoreSite, Size


class HiddenOptions(Options):
    """Options of the scores that have a hidden layer, `additive` and `concat`."""

    d_score: Annotated[Size | None, Field(description="width of the hidden layer; head_dim unless written")] = None


def additive_parameters(options: HiddenOptions, site: ScoreSite) -> tuple[Parameter, ...]:
    hidden = options.d_score or site.head_dim
    return (
        Parameter("query.weight", "score_query", (hidden, site.head_dim)),
        Parameter("key.weight", "score_key", (hidden, site.head_dim)),
        Parameter("out.weight", "score_out", (1, hidden)),
    )


def general_parameters(options: NoOptions, site: ScoreSite) -> tuple[Parameter, ...]:
    return (Parameter("weight", "score_weight", (site.head_dim, site.head_dim)),)


def concat_parameters(options: HiddenOptions, site: ScoreSite) -> tuple[Parameter, ...]:
    hidden = options.d_score or site.head_dim
    return (
        Parameter("weight", "score_weight", (hidden, 2 * site.head_dim)),
        Parameter("out.weight", "score_out", (1, hidden)),
    )


ENTRIES: list[ScoreFunction] = [
    ScoreFunction(
        name="dot",
        summary="the scaled dot product of query and key",
        reference="https://arxiv.org/abs/1706.03762",
    ),
    ScoreFunction(
        name="additive",
        summary="v . tanh(W q + U k)",
        reference="https://arxiv.org/abs/1409.0473",
        options=HiddenOptions,
        parameters=additive_parameters,
        build="tfkit.builtin.score.additive:build",
    ),
    ScoreFunction(
        name="general",
        summary="q . W k",
        reference="https://arxiv.org/abs/1508.04025",
        parameters=general_parameters,
        build="tfkit.builtin.score.general:build",
    ),
    ScoreFunction(
        name="concat",
        summary="v . tanh(W [q; k])",
        reference="https://arxiv.org/abs/1508.04025",
        options=HiddenOptions,
        parameters=concat_parameters,
        build="tfkit.builtin.score.concat:build",
    ),
]
