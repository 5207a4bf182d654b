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


def input_parameters(gates: int, site: CellSite, bias: bool) -> tuple[Parameter, ...]:
    """The weights of a cell's inputs, and their common bias."""
    rows = gates * site.d_state
    weights = tuple(Parameter(f"weights_ih.{i}", "cell_input", (rows, width)) for i, width in enumerate(site.inputs))
    return (*weights, Parameter("bias_ih", "bias", (rows,))) if bias else weights


def torch_cell_parameters(gates: int, site: CellSite, bias: bool) -> tuple[Parameter, ...]:
    """The weights of a cell of torch."""
    rows = gates * site.d_state
    state = (Parameter("weight_hh", "cell_state", (rows, site.d_state)),)
    return (*input_parameters(gates, site, bias), *state, *((Parameter("bias_hh", "bias", (rows,)),) if bias else ()))


def gru_parameters(options: GruOptions, site: CellSite) -> tuple[Parameter, ...]:
    """The weights of either form: the papers' new gate has a product of its own, of the reset state."""
    if options.reset == "after":
        return torch_cell_parameters(3, site, options.bias)
    N = site.d_state
    gates, new = Parameter("weight_hh", "cell_state", (2 * N, N)), Parameter("weight_hn", "cell_state", (N, N))
    return (*input_parameters(3, site, options.bias), gates, new)


def gru_cho_parameters(options: CellOptions, site: CellSite) -> tuple[Parameter, ...]:
    """The weights of `gru_cho`: one product of the state, without a bias."""
    N = site.d_state
    return (*input_parameters(3, site, options.bias), Parameter("weight_hh", "cell_state", (3 * N, N)))


ENTRIES: list[Cell] = [
    Cell(
        name="rnn_tanh",
        summary="tanh(W x + U h + b)",
        reference="https://doi.org/10.1207/s15516709cog1402_1",
        options=CellOptions,
        gates=1,
        parameters=lambda options, site: torch_cell_parameters(1, site, options.bias),
        build="tfkit.builtin.cell.cells:rnn_tanh",
        source="tfkit.builtin.cell:cells.py.jinja",
    ),
    Cell(
        name="rnn_relu",
        summary="max(0, W x + U h + b)",
        reference="https://arxiv.org/abs/1504.00941",
        options=CellOptions,
        gates=1,
        parameters=lambda options, site: torch_cell_parameters(1, site, options.bias),
        build="tfkit.builtin.cell.cells:rnn_relu",
        source="tfkit.builtin.cell:cells.py.jinja",
    ),
    Cell(
        name="gru",
        summary="gated recurrent unit: a reset and an update gate",
        reference="https://arxiv.org/abs/1412.3555",
        options=GruOptions,
        gates=3,
        parameters=gru_parameters,
        build="tfkit.builtin.cell.cells:gru",
        source="tfkit.builtin.cell:cells.py.jinja",
    ),
    Cell(
        name="gru_cho",
        summary="the gated recurrent unit of Cho's decoder: its reset gate scales state and context together",
        reference="https://arxiv.org/abs/1406.1078",
        options=CellOptions,
        gates=3,
        projected=4,
        parameters=gru_cho_parameters,
        build="tfkit.builtin.cell.cells:gru_cho",
        source="tfkit.builtin.cell:cells.py.jinja",
    ),
    Cell(
        name="lstm",
        summary="long short-term memory with a forget gate",
        reference="https://doi.org/10.1162/089976600300015015",
        options=CellOptions,
        gates=4,
        states=2,
        parameters=lambda options, site: torch_cell_parameters(4, site, options.bias),
        build="tfkit.builtin.cell.cells:lstm",
        source="tfkit.builtin.cell:cells.py.jinja",
    ),
]
