"""The formulas of the built-in cells: one step, (inputs, state) -> state. The first tensor of a state is the output.

The rows of the weights are the gates in the order of torch.nn.GRU (reset, update, new) and torch.nn.LSTM (input, forget, cell,
output). Each input has a weight; their products are summed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from .activations import sigmoid

State = tuple[Tensor, ...]


def _of_inputs(options: Any, weights: Mapping[str, Tensor], inputs: Sequence[Tensor]) -> Tensor:
    """W [x_0; x_1; ...] + b, for all gates."""
    total = sum(x @ weights[f"weights_ih.{i}"].mT for i, x in enumerate(inputs))
    assert isinstance(total, Tensor)
    return total + weights["bias_ih"] if options.bias else total


def _of_state(options: Any, weights: Mapping[str, Tensor], h: Tensor) -> Tensor:
    """U h + c, for all gates."""
    product = h @ weights["weight_hh"].mT
    return product + weights["bias_hh"] if options.bias else product


def rnn_tanh(options: Any, weights: Mapping[str, Tensor], inputs: Sequence[Tensor], state: State) -> State:
    """h' = tanh(W x + U h + b), Elman 1990 (https://doi.org/10.1207/s15516709cog1402_1)."""
    return (torch.tanh(_of_inputs(options, weights, inputs) + _of_state(options, weights, state[0])),)


def gru(options: Any, weights: Mapping[str, Tensor], inputs: Sequence[Tensor], state: State) -> State:
    """h' = (1 - z) h + z n, Chung et al. 2014, equations 4 to 8 (https://arxiv.org/abs/1412.3555), and Bahdanau et al. 2014,
    appendix A.1.1 (https://arxiv.org/abs/1409.0473):

    r = sigmoid(W_r x + U_r h),  z = sigmoid(W_z x + U_z h),  n = tanh(W x + U (r h))
    `reset: after` is torch.nn.GRU: n = tanh(W x + b + r (U h + c)), and z stands for 1 - z: h' = z h + (1 - z) n.
    """
    [h] = state
    x_r, x_z, x_n = _of_inputs(options, weights, inputs).chunk(3, -1)
    if options.reset == "after":
        h_r, h_z, h_n = _of_state(options, weights, h).chunk(3, -1)
        r, z = sigmoid(x_r + h_r), sigmoid(x_z + h_z)
        n = torch.tanh(x_n + r * h_n)
        return (z * h + (1 - z) * n,)
    h_r, h_z = (h @ weights["weight_hh"].mT).chunk(2, -1)
    r, z = sigmoid(x_r + h_r), sigmoid(x_z + h_z)
    n = torch.tanh(x_n + (r * h) @ weights["weight_hn"].mT)
    return ((1 - z) * h + z * n,)


def lstm(options: Any, weights: Mapping[str, Tensor], inputs: Sequence[Tensor], state: State) -> State:
    """c' = f c + i g,  h' = o tanh(c'), Gers et al. 2000 (https://doi.org/10.1162/089976600300015015), without peepholes."""
    h, c = state
    i, f, g, o = (_of_inputs(options, weights, inputs) + _of_state(options, weights, h)).chunk(4, -1)
    c = sigmoid(f) * c + sigmoid(i) * torch.tanh(g)
    return sigmoid(o) * torch.tanh(c), c


FORMULAS = {"rnn_tanh": rnn_tanh, "gru": gru, "lstm": lstm}
