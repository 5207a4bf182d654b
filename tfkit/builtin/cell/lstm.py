"""Long short-term memory with a forget gate, Gers et al. 2000 (https://doi.org/10.1162/089976600300015015):

i = sigmoid(W_i x + U_i h)    f = sigmoid(W_f x + U_f h)    o = sigmoid(W_o x + U_o h)
c' = f * c + i * tanh(W_c x + U_c h)
h' = o * tanh(c')
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...plugin import CellSite
from .entries import CellOptions
from .weights import State, TorchCellWeights


class Lstm(TorchCellWeights):
    """One step of long short-term memory; the state is (h, c)."""

    torch_function = staticmethod(torch.lstm)

    def __init__(self, site: CellSite, bias: bool) -> None:
        super().__init__(4, site, bias)

    def step(self, projected: Tensor, state: State) -> State:
        """(B, 4 N), (h (B, N), c (B, N)) -> (h', c')."""
        h, c = state
        i, f, new, o = (projected + self.of_state(h)).chunk(4, 1)
        c = torch.sigmoid(f) * c + torch.sigmoid(i) * torch.tanh(new)
        return torch.sigmoid(o) * torch.tanh(c), c


def build(options: CellOptions, site: CellSite) -> nn.Module:
    """The cell as a module."""
    return Lstm(site, options.bias)
