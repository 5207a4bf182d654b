"""General (bilinear) score, Luong et al. 2015, section 3.1 (https://arxiv.org/abs/1508.04025):

score(q, k) = q . W k
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...plugin import NoOptions
from ...slots.score import ScoreSite


class General(nn.Module):
    """Maps query (B,H,Q,D) and key (B,G,K,D) to scores (B,H,Q,K)."""

    def __init__(self, head_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(head_dim, head_dim))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        query, key = query.to(self.weight.dtype), key.to(self.weight.dtype)  # narrower than the weights under autocast
        keys = functional.linear(key, self.weight).repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        return query @ keys.transpose(2, 3)


def build(options: NoOptions, site: ScoreSite) -> nn.Module:
    """The score as a module."""
    return General(site.head_dim)
