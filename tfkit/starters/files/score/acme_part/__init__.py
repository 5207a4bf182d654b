"""The declaration of the score function `acme.part`. This file imports no torch."""

from __future__ import annotations

from tfkit.plugin import NoOptions, Parameter, ScoreFunction, hookimpl
from tfkit.plugin.model_parts import Cost, ScoreSite, Sizes


def parameters(options: NoOptions, site: ScoreSite) -> tuple[Parameter, ...]:
    return (Parameter("weight", "score_weight", (site.head_dim, site.key_features)),)


def costs(options: NoOptions, site: ScoreSite, kv_heads: int, sizes: Sizes) -> Cost:
    B, Q, K, D, H = sizes.batch, sizes.queries, sizes.keys, site.head_dim, site.heads
    return Cost("attention", 2 * B * kv_heads * K * D * site.key_features + 2 * B * H * Q * K * D, 2 * B * kv_heads * K * D)


@hookimpl
def tfkit_score_functions() -> list[ScoreFunction]:
    return [
        ScoreFunction(
            name="acme.part",
            summary="q . tanh(W k)",
            reference="https://arxiv.org/abs/1508.04025",
            contract=1,
            parameters=parameters,
            costs=costs,
            build="acme_part.bounded:build",
            formula="acme_part.formula:bounded",
        )
    ]
