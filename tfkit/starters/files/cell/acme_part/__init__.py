"""The declaration of the recurrent cell `acme.part`: its weights. This file imports no torch."""

from __future__ import annotations

from tfkit.plugin import Cell, CellSite, NoOptions, Parameter, hookimpl


def parameters(options: NoOptions, site: CellSite) -> tuple[Parameter, ...]:
    N = site.d_state
    return (
        *(Parameter(f"weights_ih.{i}", "cell_input", (2 * N, width)) for i, width in enumerate(site.inputs)),
        Parameter("forget.weight", "cell_state", (N, N)),
        Parameter("new.weight", "cell_state", (N, N)),
        Parameter("bias", "bias", (2 * N,)),
    )


@hookimpl
def tfkit_cells() -> list[Cell]:
    return [
        Cell(
            name="acme.part",
            summary="minimal gated unit: one gate forgets and admits",
            reference="https://arxiv.org/abs/1603.09420",
            contract=1,
            gates=2,
            parameters=parameters,
            build="acme_part.minimal:build",
            formula="acme_part.formula:minimal",
        )
    ]
