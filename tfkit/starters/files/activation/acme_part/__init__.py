"""The declaration of the activation `acme.part`. This file imports no torch."""

from __future__ import annotations

from tfkit.plugin import Activation, hookimpl


@hookimpl
def tfkit_activations() -> list[Activation]:
    return [
        Activation(
            name="acme.part",
            summary="x tanh(softplus(x)), called mish",
            reference="https://arxiv.org/abs/1908.08681",
            contract=1,
            claims=lambda options: frozenset({"closes", "rounds_once"}),
            function="acme_part.mish:mish",
            formula="acme_part.formula:mish",
        )
    ]
