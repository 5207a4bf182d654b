"""The minimal gated unit, Zhou et al. 2016, equation 7 (https://arxiv.org/abs/1603.09420):

f = sigmoid(W_f x + U_f h + b_f)
n = tanh(W_n x + U_n (f h) + b_n)
h' = (1 - f) h + f n
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfkit.plugin import CellSite, NoOptions


class MinimalGatedUnit(nn.Module):
    """One step; the state is (h (B, N),). Each input has a weight of its own, (2 N, inputs[i])."""

    def __init__(self, site: CellSite) -> None:
        super().__init__()
        N = site.d_state
        self.weights_ih = nn.ParameterList([torch.empty(2 * N, width) for width in site.inputs])
        self.forget, self.new = nn.Linear(N, N, bias=False), nn.Linear(N, N, bias=False)
        self.bias = nn.Parameter(torch.empty(2 * N))

    def project(self, x: Tensor, index: int) -> Tensor:
        """What depends on input `index` alone: (..., inputs[i]) -> (..., 2 N), with the bias for the first one."""
        return functional.linear(x, self.weights_ih[index], self.bias if index == 0 else None)

    def step(self, projected: Tensor, state: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        [h] = state
        of_forget, of_new = projected.chunk(2, -1)
        forget = torch.sigmoid(of_forget + self.forget(h))
        return (torch.lerp(h, torch.tanh(of_new + self.new(forget * h)), forget),)


def build(options: NoOptions, site: CellSite) -> nn.Module:
    return MinimalGatedUnit(site)
