"""Attention with linear biases, Press et al. 2022, section 3 (https://arxiv.org/abs/2108.12409):

    bias[h, i, j] = -slope_h |j - i|

    slope_h = 2^(-8h/H), h = 1 .. H                                        where H is a power of two
    otherwise the slopes of P heads, P the largest power of two below H, then slopes 1, 3, 5, ... of 2P heads

The second rule is from the authors' code. Without a causal mask the penalty is symmetric.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...attention.positions import PositionRange
from ...plugin import LinearBias, NoOptions
from ...plugin.model_parts import MethodModule
from ...slots.position import PositionSite


def slopes(heads: int, device: torch.device) -> Tensor:
    """The slopes of all heads, (H,) float32."""
    power = 2 ** (heads.bit_length() - 1)
    first = torch.arange(1, power + 1, dtype=torch.float64, device=device) * (-8 / power)
    between = (torch.arange(heads - power, dtype=torch.float64, device=device) + 0.5) * (-8 / power)
    return torch.exp2(torch.cat((first, between))).to(torch.float32)


class Alibi(MethodModule):
    """The slopes of `heads` heads, as a bias."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def prepare(self, span: PositionRange) -> Tensor:
        """The slopes (H,)."""
        return slopes(self.heads, span.device)

    def bias(self, query: Tensor, tables: Tensor, scale: float) -> LinearBias:
        """The bias of a call. It depends on neither query nor scale."""
        return LinearBias(tables)

    def extra_repr(self) -> str:
        return f"{self.heads}"


def build(options: NoOptions, site: PositionSite) -> nn.Module:
    """The scheme for the heads of a site."""
    return Alibi(site.heads)
