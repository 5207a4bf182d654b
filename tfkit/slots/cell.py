"""Cell: one step of a recurrent network, state' = cell(input, state)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from .options import Entry
from .parameter import Parameter


@dataclass(frozen=True)
class CellSite:
    """Where a cell is built.

    Args:
        inputs: width of each input; their products are summed. A decoder's cell reads the token and the context.
        d_state: features of the state N.
    """

    inputs: tuple[int, ...]
    d_state: int

    @property
    def width(self) -> int:
        """Features of all inputs side by side."""
        return sum(self.inputs)


@dataclass(frozen=True, kw_only=True)
class Cell(Entry):
    """A recurrent cell.

    Args:
        parameters: `parameters(options, site)` lists its weights.
        build: `"module:function"`, called as `build(options, site)`. It returns an `nn.Module` with
            `project(x (..., inputs[i]), i) -> (..., E)`, the part that depends on input i alone, for all steps at once; and
            `step(projected (B, E), state) -> state`, where a state is a tuple of tensors (B, N), the output first. A module
            with the members of `tfkit.nn.recurrent_layer.TorchCell` runs whole sequences in one call of torch.
        gates: E / N, for the count of FLOPs: products of the input per feature of the state.
        projected: E / N if it is not `gates`: a cell that adds a product later than the others has features for it.
        states: the number of tensors in a state: 2 for LSTM, which has a memory cell.
        formula: `"module:function"`, the plain equation that it is checked against, called as
            `formula(options, weights, inputs, state)`, which gives the next state.
    """

    parameters: Callable[[Any, CellSite], tuple[Parameter, ...]]
    build: str
    gates: int
    projected: int = 0
    states: int = 1
    formula: str = ""
