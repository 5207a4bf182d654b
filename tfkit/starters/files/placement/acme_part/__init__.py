"""The declaration of the placement `acme.part`. This file imports no torch."""

from __future__ import annotations

from tfkit.plugin import Placement, hookimpl


@hookimpl
def tfkit_placements() -> list[Placement]:
    return [
        Placement(
            name="acme.part",
            summary="x = x + norm(f(x)), with a norm at the end of the stack",
            reference="https://arxiv.org/abs/2111.09883",
            contract=1,
            norm_sites=lambda options, sublayers: sublayers,
            final_norm=lambda options: True,
            build="acme_part.wiring:build",
            formula="acme_part.formula:wiring",
        )
    ]
