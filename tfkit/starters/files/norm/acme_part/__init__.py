"""The declaration of the norm `acme.part`: its options, weights and claims. This file imports no torch."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from tfkit.plugin import Norm, Options, Parameter, hookimpl


class NormOptions(Options):
    """Options of `acme.part`."""

    eps: Annotated[float, Field(gt=0.0, description="added to the mean square")] = 1e-6


@hookimpl
def tfkit_norms() -> list[Norm]:
    return [
        Norm(
            name="acme.part",
            summary="divides by the root of the mean square, then scales",
            reference="https://arxiv.org/abs/1910.07467",
            contract=1,
            options=NormOptions,
            parameters=lambda options, width: (Parameter("weight", "norm_scale", (width,)),),
            claims=lambda options: frozenset({"scale_invariant", "unit_rms", "rounds_once"}),
            build="acme_part.rms:build",
            formula="acme_part.formula:root_mean_square",
        )
    ]
