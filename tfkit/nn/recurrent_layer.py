"""A recurrent layer: a cell applied from left to right, and in a bidirectional layer a second one from right to left.

Padding changes no state: at a position that is not visible the state stays what it was.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn
from torch._higher_order_ops import scan
from torch.nn.utils.rnn import PackedSequence, pack_padded_sequence, pad_packed_sequence

from .runtime.context import MethodModule, use

State = tuple[Tensor, ...]
"""The state of a cell: tensors (B, N), the output first."""


@runtime_checkable
class TorchCell(Protocol):
    """A cell whose equation torch computes over whole sequences (`torch.gru`, `torch.lstm`, `torch.rnn_tanh`)."""

    torch_function: Callable[..., Any]

    def flat_weights(self) -> list[Tensor]:
        """The weights in the order of `torch.nn.GRU.all_weights`."""
        ...


def held(new: State, old: State, seen: Tensor | None) -> State:
    """The new state in the rows that are `seen` (B, 1), the old one in the others."""
    return new if seen is None else tuple(torch.where(seen, n, o) for n, o in zip(new, old, strict=True))


class RecurrentLayer(MethodModule):
    """Maps (B, L, inputs) to (B, L, N), or to (B, L, 2 N) with a backward cell: `layer("read", ...)`. A loop over the steps of
    a decoder uses `project` and `step` instead.

    Args:
        cell: the cell; see `tfkit.slots.cell.Cell`.
        backward_cell: the cell that reads from right to left, or None.
    """

    cell: Any
    backward_cell: Any

    def __init__(self, cell: nn.Module, backward_cell: nn.Module | None) -> None:
        super().__init__()
        self.cell, self.backward_cell = cell, backward_cell
        self.by_torch = isinstance(cell, TorchCell)  # checked once: Dynamo cannot trace it

    def project(self, x: Tensor, index: int) -> Tensor:
        """The part of the steps that depends on input `index` alone, (..., inputs[i]) -> (..., E)."""
        projected: Tensor = use(self.cell, "project", x, index)
        return projected

    def step(self, projected: Tensor, state: State) -> State:
        """The next state, from (B, E) and a state."""
        new: State = use(self.cell, "step", projected, state)
        return new

    def read(
        self, inputs: Sequence[Tensor], state: State, visible: Tensor | None, lengths: Tensor | None
    ) -> tuple[Tensor, State]:
        """Read whole sequences.

        Args:
            inputs: (B, L, inputs[i]); L may be 1 for an input that is the same at every step.
            state: the state before the first position. A backward cell starts from zeros.
            visible: (B, L) bool, False for padding; None if there is none.
            lengths: (B,) on the CPU, the lengths if all padding is on the right and no row is empty.

        Returns:
            The outputs, and the state of the forward cell after the last token.
        """
        packable = visible is None or lengths is not None
        sharded = hasattr(self.cell, "unshard")  # a unit of FSDP, whose weights are whole only inside of its calls
        if (
            self.by_torch
            and packable
            and not sharded
            and not torch.compiler.is_compiling()
            and not torch._C._are_functorch_transforms_active()
            and not torch.is_autocast_enabled(inputs[0].device.type)
        ):
            return self._by_torch(inputs, state, lengths)
        forward, last = _read(self.cell, inputs, state, visible, reverse=False)
        if self.backward_cell is None:
            return forward, last
        zeros = tuple(torch.zeros_like(tensor) for tensor in state)
        backward, _ = _read(self.backward_cell, inputs, zeros, visible, reverse=True)
        return torch.cat([forward, backward], 2), last

    def _by_torch(self, inputs: Sequence[Tensor], state: State, lengths: Tensor | None) -> tuple[Tensor, State]:
        """The same by one call of torch."""
        cells = [self.cell] if self.backward_cell is None else [self.cell, self.backward_cell]
        weights = [weight for cell in cells for weight in use(cell, "flat_weights")]
        L = max(x.shape[1] for x in inputs)
        x = inputs[0] if len(inputs) == 1 else torch.cat([x.expand(-1, L, -1) for x in inputs], 2)
        first = [torch.stack([tensor, *(torch.zeros_like(tensor) for _ in cells[1:])]) for tensor in state]  # (cells, B, N)
        bias = len(weights) == 4 * len(cells)
        settings = (weights, bias, 1, 0.0, torch.is_grad_enabled(), len(cells) == 2)
        function = self.cell.torch_function
        if lengths is None:
            outputs, *last = function(x, first if len(first) > 1 else first[0], *settings, True)
        else:
            packed = pack_padded_sequence(x, lengths, batch_first=True, enforce_sorted=False)
            order, back = packed.sorted_indices, packed.unsorted_indices
            assert order is not None
            assert back is not None
            first = [tensor.index_select(1, order) for tensor in first]
            data, *last = function(packed.data, packed.batch_sizes, first if len(first) > 1 else first[0], *settings)
            outputs, _ = pad_packed_sequence(PackedSequence(data, packed.batch_sizes, order, back), True, total_length=L)
            last = [tensor.index_select(1, back) for tensor in last]
        return outputs, tuple(tensor[0] for tensor in last)


def _read(cell: Any, inputs: Sequence[Tensor], state: State, visible: Tensor | None, reverse: bool) -> tuple[Tensor, State]:
    """Step through sequences; the products of all inputs are computed before."""
    projected: Tensor = sum(use(cell, "project", x, i) for i, x in enumerate(inputs))
    if torch.compiler.is_exporting() and (isinstance(projected.shape[1], torch.SymInt) or projected.shape[1] > 1):
        return _scanned(cell, projected, state, visible, reverse)
    steps = projected.unbind(1)  # L of (B, E)
    seen: Sequence[Tensor | None] = [None] * len(steps) if visible is None else visible.unsqueeze(2).unbind(1)  # (B, 1)
    order = range(len(steps))
    outputs: list[Any] = [None] * len(steps)
    for t in reversed(order) if reverse else order:
        state = held(use(cell, "step", steps[t], state), state, seen[t])
        outputs[t] = state[0]
    return torch.stack(outputs, 1), state


def _scanned(cell: Any, projected: Tensor, state: State, visible: Tensor | None, reverse: bool) -> tuple[Tensor, State]:
    """The same as a loop in the exported program, for sequences of any length."""
    if visible is None:
        visible = torch.ones_like(projected[:, :, 0], dtype=torch.bool)

    def step(state: State, x: tuple[Tensor, Tensor]) -> tuple[State, Tensor]:
        new = held(use(cell, "step", x[0], state), state, x[1])
        return new, new[0].clone()

    first = tuple(tensor.clone() for tensor in state)  # `scan` refuses one tensor as two states
    last, outputs = scan(step, first, (projected, visible.unsqueeze(2)), dim=1, reverse=reverse)
    return outputs, last
