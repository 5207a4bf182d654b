"""Relative position representations, Shaw et al. 2018, equation 4 (https://arxiv.org/abs/1803.02155), the key term:

    score[h, i, j] = scale q_i . (k_j + a[clip(j - i, -m, m)]) = scale q_i . k_j + bias[h, i, j]
    bias[h, i, j]  = scale q_i . a[clip(j - i, -m, m)]

All heads share the vectors a. The paper's value term (equation 3) adds vectors to the values, which the attention contract
cannot express. The paper found no loss with the key term alone (table 3).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...attention.positions import PositionRange
from ...plugin import DenseBias
from ...plugin.model_parts import MethodModule
from ...slots.position import PositionSite
from .entries_scores import RelativeShawOptions


class RelativeShaw(MethodModule):
    """A table (2 max_distance + 1, D) of vectors, one per clipped distance."""

    def __init__(self, max_distance: int, head_dim: int) -> None:
        super().__init__()
        self.max_distance = max_distance
        self.table = nn.Parameter(torch.empty(2 * max_distance + 1, head_dim))

    def prepare(self, span: PositionRange) -> Tensor:
        """The row of the table for each query and key, (Q, K)."""
        keys = torch.arange(span.keys, device=span.device)
        distance = keys - span.query_positions().unsqueeze(1)
        return distance.clamp(-self.max_distance, self.max_distance) + self.max_distance

    def bias(self, query: Tensor, tables: Tensor, scale: float) -> DenseBias:
        """Query (B,H,Q,D) to the bias (B,H,Q,K)."""
        by_distance = functional.linear(query, self.table) * scale  # (B,H,Q,2m+1): one product per distance, not per key
        return DenseBias(by_distance.gather(3, tables.expand(*query.shape[:2], -1, -1)))

    def extra_repr(self) -> str:
        return f"max_distance={self.max_distance}, head_dim={self.table.shape[1]}"


def build(options: RelativeShawOptions, site: PositionSite) -> nn.Module:
    """The table as a module."""
    return RelativeShaw(options.max_distance, site.head_dim)
