"""The declaration of the position scheme `acme.part`. This file imports no torch."""

from __future__ import annotations

from tfkit.plugin import PositionScheme, hookimpl


@hookimpl
def tfkit_position_schemes() -> list[PositionScheme]:
    return [
        PositionScheme(
            name="acme.part",
            summary="a penalty linear in the distance, with one fixed slope per head",
            reference="https://arxiv.org/abs/2108.12409",
            contract=1,
            acts=frozenset({"scores"}),
            bias_kinds=frozenset({"linear"}),
            build="acme_part.slopes:build",
            formulas={"scores": "acme_part.formula:penalty"},
        )
    ]
