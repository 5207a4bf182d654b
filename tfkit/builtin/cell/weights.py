"""The weights that all built-in cells have: a product for each input, and one or two of the state."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...plugin import CellSite
from ...plugin.model_parts import MethodModule

State = tuple[Tensor, ...]


class InputWeights(nn.ParameterList):
    """The weights of the inputs. `weights(i)` is `weights[i]` as a call, which torch's list of parameters refuses."""

    __call__ = nn.Module.__call__

    def forward(self, index: int) -> Tensor:
        weight: Tensor = self[index]
        return weight


class CellWeights(MethodModule):
    """W_i (E, inputs[i]), U (E, N) and their biases (E,), where E = gates * N.

    Every input has a weight of its own. A slice of one weight would fill its whole gradient with zeros at every step.
    """

    def __init__(self, gates: int, site: CellSite, bias: bool) -> None:
        super().__init__()
        self.d_state = site.d_state
        rows = gates * site.d_state
        self.weights_ih = InputWeights([torch.empty(rows, width) for width in site.inputs])
        self.bias_ih = nn.Parameter(torch.empty(rows)) if bias else None

    def project(self, x: Tensor, index: int) -> Tensor:
        """W_i x, with the bias for the first input: (..., inputs[i]) -> (..., E)."""
        return functional.linear(x, self.weights_ih(index), self.bias_ih if index == 0 else None)


class TorchCellWeights(CellWeights):
    """The weights of torch's cells: one product of the state for all gates, with a bias of its own."""

    def __init__(self, gates: int, site: CellSite, bias: bool) -> None:
        super().__init__(gates, site, bias)
        rows = gates * site.d_state
        self.weight_hh = nn.Parameter(torch.empty(rows, site.d_state))
        self.bias_hh = nn.Parameter(torch.empty(rows)) if bias else None

    def of_state(self, h: Tensor) -> Tensor:
        """U h + b: (B, N) -> (B, E)."""
        return functional.linear(h, self.weight_hh, self.bias_hh)

    def flat_weights(self) -> list[Tensor]:
        """W, U and the biases in the order of torch's recurrent functions."""
        weights = [self.weights_ih(index) for index in range(len(self.weights_ih))]
        inputs = weights[0] if len(weights) == 1 else torch.cat(weights, 1)
        return [inputs, self.weight_hh, *(bias for bias in (self.bias_ih, self.bias_hh) if bias is not None)]
