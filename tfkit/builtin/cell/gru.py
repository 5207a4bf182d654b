"""The gated recurrent unit, Cho et al. 2014, section 2.3 (https://arxiv.org/abs/1406.1078):

    r = sigmoid(W_r x + U_r h)
    z = sigmoid(W_z x + U_z h)
    n = tanh(W_n x + U_n (r * h))              `reset: before`, the papers (Cho; Bahdanau et al. 2015, appendix A.1.1)
    n = tanh(W_n x + r * (U_n h + c_n))        `reset: after`, torch.nn.GRU and cuDNN
    h' = (1 - z) * h + z * n                   `before`
    h' = z * h + (1 - z) * n                   `after`: torch's z is one minus that of the papers

With the same weights the two forms differ, because the reset gate acts on different sides of the product.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...plugin import CellSite
from .entries import GruOptions
from .weights import CellWeights, State, TorchCellWeights


class GruResetBefore(CellWeights):
    """One step of the papers' gated recurrent unit; the state is (h,)."""

    def __init__(self, site: CellSite, bias: bool) -> None:
        super().__init__(3, site, bias)
        N = site.d_state
        self.weight_hh = nn.Parameter(torch.empty(2 * N, N))
        self.weight_hn = nn.Parameter(torch.empty(N, N))

    def step(self, projected: Tensor, state: State) -> State:
        """(B, 3 N), (h (B, N),) -> (h',)."""
        (h,), N = state, self.d_state
        of_gates, of_new = torch.split(projected, [2 * N, N], 1)
        r, z = torch.sigmoid(of_gates + functional.linear(h, self.weight_hh)).chunk(2, 1)
        n = torch.tanh(of_new + functional.linear(r * h, self.weight_hn))
        return (torch.lerp(h, n.to(h.dtype), z.to(h.dtype)),)  # h + z * (n - h)


class GruResetAfter(TorchCellWeights):
    """One step of torch's gated recurrent unit; the state is (h,)."""

    torch_function = staticmethod(torch.gru)

    def __init__(self, site: CellSite, bias: bool) -> None:
        super().__init__(3, site, bias)

    def step(self, projected: Tensor, state: State) -> State:
        """(B, 3 N), (h (B, N),) -> (h',)."""
        (h,), N = state, self.d_state
        of_gates, of_new = torch.split(projected, [2 * N, N], 1)
        state_gates, state_new = torch.split(self.of_state(h), [2 * N, N], 1)
        r, z = torch.sigmoid(of_gates + state_gates).chunk(2, 1)
        n = torch.tanh(of_new + r * state_new)
        return (torch.lerp(n.to(h.dtype), h, z.to(h.dtype)),)  # n + z * (h - n)


def build(options: GruOptions, site: CellSite) -> nn.Module:
    """The cell as a module."""
    return (GruResetBefore if options.reset == "before" else GruResetAfter)(site, options.bias)
