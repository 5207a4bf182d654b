"""Linear biases in the manner of Press et al. 2022, section 3 (https://arxiv.org/abs/2108.12409):

bias[h, i, j] = -2^(-8 h / H) |j - i|, h = 1 .. H
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from tfkit.plugin import LinearBias, NoOptions
from tfkit.plugin.model_parts import PositionRange, PositionSite


class Slopes(nn.Module):
    """The slopes of `heads` heads, as a bias."""

    def __init__(self, heads: int) -> None:
        super().__init__()
        self.heads = heads

    def prepare(self, span: PositionRange) -> Tensor:
        """The slopes (H,), once per forward pass of a stack."""
        return torch.exp2(torch.arange(1, self.heads + 1, dtype=torch.float32, device=span.device) * (-8 / self.heads))

    def bias(self, query: Tensor, tables: Tensor, scale: float) -> LinearBias:
        return LinearBias(tables)


def build(options: NoOptions, site: PositionSite) -> nn.Module:
    return Slopes(site.heads)
