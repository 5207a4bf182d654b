"""What the built-in recurrent cells are called, which options they take and which weights they have.

The gates of a cell are stacked along the first axis, in the order of torch.nn.GRU (reset, update, new) and torch.nn.LSTM
(input, forget, cell, output), and have their names.
"""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from ...plugin import Cell, CellSite, OneOf, Options, Parameter


class CellOptions(Options):
    """Options of every built-in cell."""

    bias: Annotated[bool, Field(description="whether the gates have a bias")] = True


class GruOptions(CellOptions):
    """Options of `gru`."""

    reset: Annotated[
        str,
        OneOf("before", "after"),
        Field(description="the reset gate acts `before` the product with the state (the papers), or `after` (torch, cuDNN)"),
    ] = "before"


def cell_parameters(gates: int, site: CellSite, bias: bool, state_bias: bool = True) -> tuple[Parameter, ...]:
    """The weights of a cell with `gates` gates; `state_bias`: also a bias of the product with the state."""
    rows = gates * site.d_state
    weights = (
        Parameter("weight_ih", "cell_input", (rows, site.width)),
        Parameter("weight_hh", "cell_state", (rows, site.d_state)),
    )
    biases = (Parameter("bias_ih", "bias", (rows,)), Parameter("bias_hh", "bias", (rows,)))
    return (*weights, *biases[: 1 + state_bias]) if bias else weights


ENTRIES: list[Cell] = [
    Cell(
        name="rnn_tanh",
        summary="tanh(W x + U h + b)",
        reference="https://doi.org/10.1207/s15516709cog1402_1",
        options=CellOptions,
        gates=1,
        parameters=lambda options, site: cell_parameters(1, site, options.bias),
        build="tfkit.builtin.cell.rnn_tanh:build",
    ),
    Cell(
        name="gru",
        summary="gated recurrent unit: a reset and an update gate",
        reference="https://arxiv.org/abs/1406.1078",
        options=GruOptions,
        gates=3,
        parameters=lambda options, site: cell_parameters(3, site, options.bias, options.reset == "after"),
        build="tfkit.builtin.cell.gru:build",
    ),
    Cell(
        name="lstm",
        summary="long short-term memory with a forget gate",
        reference="https://doi.org/10.1162/089976600300015015",
        options=CellOptions,
        gates=4,
        states=2,
        parameters=lambda options, site: cell_parameters(4, site, options.bias),
        build="tfkit.builtin.cell.lstm:build",
    ),
]
