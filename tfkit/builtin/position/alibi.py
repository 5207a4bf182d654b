"""Attention with linear biases, Press et al. 2022, section 3 (https://arxiv.org/abs/2108.12409):

    bias[h, i, j] = -slope_h |j - i|

    slope_h = 2^(-8h/H), h = 1 .. H                                        where H is a power of two
    the P slopes of the largest power of two P < H, then every second of the 2P slopes, from the first on       otherwise

The second rule is that of the authors' code. Without a causal mask the penalty is the same on both sides.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...attention.positions import PositionRange
from ...plugin import LinearBias, NoOptions
from ...slots.position import PositionSite


def slopes(heads: int, device: torch.device) -> Tensor:
    """(H,) float32."""
    power = 2 ** (heads.bit_length() - 1)
    first = torch.arange(1, power + 1, dtype=torch.float64, device=device) * (-8 / power)
    between = (torch.arange(heads - power, dtype=torch.float64, device=device) + 0.5) * (-8 / power)
    return torch.exp2(torch.cat((first, between))).to(torch.float32)


class Alibi(nn.Module):
    """The slopes of `heads` heads, as a bias."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def prepare(self, span: PositionRange) -> Tensor:
        """The slopes (H,)."""
        return slopes(self.heads, span.device)

    def bias(self, query: Tensor, tables: Tensor, scale: float) -> LinearBias:
        """The bias of a call; the query and the scale do not matter."""
        return LinearBias(tables)

    def extra_repr(self) -> str:
        return f"{self.heads}"


def build(options: NoOptions, site: PositionSite) -> nn.Module:
    """The scheme for the heads of a site."""
    return Alibi(site.heads)
