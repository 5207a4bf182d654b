"""The simple recurrent network, Elman 1990 (https://doi.org/10.1207/s15516709cog1402_1):

h' = tanh(W x + b + U h + c)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...plugin import CellSite
from .entries import CellOptions
from .weights import State, TorchCellWeights


class RnnTanh(TorchCellWeights):
    """One step of a simple recurrent network; the state is (h,)."""

    torch_function = staticmethod(torch.rnn_tanh)

    def __init__(self, site: CellSite, bias: bool) -> None:
        super().__init__(1, site, bias)

    def step(self, projected: Tensor, state: State) -> State:
        """(B, N), (h (B, N),) -> (h',)."""
        return (torch.tanh(projected + self.of_state(state[0])),)


def build(options: CellOptions, site: CellSite) -> nn.Module:
    """The cell as a module."""
    return RnnTanh(site, options.bias)
