"""The weights that all built-in cells have: one product of the inputs, one of the state."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...plugin import CellSite

State = tuple[Tensor, ...]


class CellWeights(nn.Module):
    """W (E, inputs side by side), U (E, N) and their biases (E,), where E = gates * N."""

    def __init__(self, gates: int, site: CellSite, bias: bool, state_bias: bool = True) -> None:
        super().__init__()
        self.inputs, self.d_state = site.inputs, site.d_state
        self.starts = [sum(site.inputs[:i]) for i in range(len(site.inputs))]
        rows = gates * site.d_state
        self.weight_ih = nn.Parameter(torch.empty(rows, site.width))
        self.weight_hh = nn.Parameter(torch.empty(rows, site.d_state))
        self.bias_ih = nn.Parameter(torch.empty(rows)) if bias else None
        self.bias_hh = nn.Parameter(torch.empty(rows)) if bias and state_bias else None

    def project(self, x: Tensor, index: int) -> Tensor:
        """W_i x, with the bias for the first input: (..., inputs[i]) -> (..., E)."""
        start = self.starts[index]
        weight = self.weight_ih[:, start : start + self.inputs[index]]
        return functional.linear(x, weight, self.bias_ih if index == 0 else None)

    def of_state(self, h: Tensor) -> Tensor:
        """U h + b: (B, N) -> (B, E)."""
        return functional.linear(h, self.weight_hh, self.bias_hh)

    def flat_weights(self) -> list[Tensor]:
        """W, U and the biases in the order of torch's recurrent functions."""
        return [tensor for tensor in (self.weight_ih, self.weight_hh, self.bias_ih, self.bias_hh) if tensor is not None]
