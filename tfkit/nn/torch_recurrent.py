"""Weights of torch.nn.RNN, GRU and LSTM into a recurrent node, and back."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import Diagnostic, InputError
from .recurrent import Recurrent
from .recurrent_layer import TorchCell

TORCH_CLASSES: dict[object, Any] = {
    torch.rnn_tanh: nn.RNN, torch.rnn_relu: partial(nn.RNN, nonlinearity="relu"), torch.gru: nn.GRU, torch.lstm: nn.LSTM,
}  # fmt: skip


def load_torch(node: Recurrent, module: nn.RNNBase) -> None:
    """Copy the weights of one of torch's recurrent modules.

    Args:
        node: an encoder or a language model, `model.nodes["encoder"]`, with cells that torch has: `rnn_tanh`,
            `rnn_relu`, `lstm`, or `gru` with `reset: after`.
        module: a torch.nn.RNN, GRU or LSTM of the same sizes.

    Raises:
        InputError: the cells, sizes, directions or biases differ. Nothing is changed.
    """
    theirs = to_torch(node)
    if type(module) is not type(theirs) or _described(module) != _described(theirs):
        raise InputError(Diagnostic("TFK071", f"{_described(module)} does not fit a node like {_described(theirs)}"))
    with torch.no_grad():
        for parameter, weight in zip(_weights(node), module.parameters(), strict=True):
            parameter.copy_(weight)


def to_torch(node: Recurrent) -> nn.RNNBase:
    """A module of torch with copies of a node's weights.

    Args:
        node: as in `load_torch`.

    Returns:
        A torch.nn.RNN, GRU or LSTM with `batch_first=True`.

    Raises:
        InputError: torch has no such module: another cell, or a decoder whose cells read more than their input.
    """
    cells: list[Any] = [cell for layer in node.layers for cell in (layer.cell, layer.backward_cell) if cell is not None]
    if not all(isinstance(cell, TorchCell) for cell in cells) or len(cells[0].weights_ih) > 1 or node.attend:
        rule = "torch's cells are `rnn_tanh`, `rnn_relu`, `lstm` and `gru` with `reset: after`, with one input and no attention"
        raise InputError(Diagnostic("TFK071", f"torch has no module like `{node.name}`", rule))
    first = cells[0]
    weights = list(_weights(node))
    module: nn.RNNBase = TORCH_CLASSES[first.torch_function](
        weights[0].shape[1],
        node.d_state,
        len(node.layers),
        bias=first.bias_ih is not None,
        batch_first=True,
        dropout=0.0,
        bidirectional=len(cells) > len(node.layers),
        device=weights[0].device,
        dtype=weights[0].dtype,
    )
    with torch.no_grad():
        for theirs, weight in zip(module.parameters(), weights, strict=True):
            theirs.copy_(weight)
    return module


def _weights(node: Recurrent) -> Iterator[Tensor]:
    for layer in node.layers:
        for cell in (layer.cell, layer.backward_cell):
            if cell is not None:
                yield from cell.flat_weights()


def _described(module: nn.RNNBase) -> str:
    sides = ", bidirectional" if module.bidirectional else ""
    bias = "" if module.bias else ", bias=False"
    relu = ", nonlinearity='relu'" if module.mode == "RNN_RELU" else ""
    return f"{type(module).__name__}({module.input_size}, {module.hidden_size}, {module.num_layers}{relu}{bias}{sides})"
