"""The bilinear score of Luong et al. 2015, section 3.1 (https://arxiv.org/abs/1508.04025), with bounded keys:

score(q, k) = q . tanh(W k)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tfkit.plugin import NoOptions, expand_heads
from tfkit.plugin.model_parts import ScoreSite


class Bounded(nn.Module):
    """Query (B,H,Q,D) and mapped key (B,G,K,D) to scores (B,H,Q,K). All heads share W."""

    def __init__(self, head_dim: int, key_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(head_dim, key_dim))

    def map_keys(self, key: Tensor) -> Tensor:
        """tanh(W k): (B,G,K,key_dim) -> (B,G,K,D), once per key."""
        return torch.tanh(functional.linear(key.to(self.weight.dtype), self.weight)).to(key.dtype)

    def forward(self, query: Tensor, mapped: Tensor) -> Tensor:
        dtype = self.weight.dtype  # under autocast the weights are wider than query and key
        return query.to(dtype) @ expand_heads(mapped.to(dtype), query.shape[1]).mT


def build(options: NoOptions, site: ScoreSite) -> nn.Module:
    return Bounded(site.head_dim, site.key_features)
