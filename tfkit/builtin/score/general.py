"""General (bilinear) score, Luong et al. 2015, section 3.1 (https://arxiv.org/abs/1508.04025):

score(q, k) = q . W k
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...plugin import NoOptions, expand_heads
from ...slots.score import ScoreSite
from .score_module import ScoreModule


class General(ScoreModule):
    """Maps query (B,H,Q,D) and mapped key (B,G,K,D) to scores (B,H,Q,K): a dot product."""

    def __init__(self, head_dim: int, key_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(head_dim, key_dim))

    def map_keys(self, key: Tensor) -> Tensor:
        """W k: (B,G,K,key_dim) -> (B,G,K,D)."""
        return functional.linear(key.to(self.weight.dtype), self.weight).to(key.dtype)

    def scores(self, query: Tensor, mapped: Tensor) -> Tensor:
        dtype = self.weight.dtype  # under autocast the weights are wider than query and key
        keys = expand_heads(mapped.to(dtype), query.shape[1])
        return query.to(dtype) @ keys.transpose(2, 3)


def build(options: NoOptions, site: ScoreSite) -> nn.Module:
    """The score as a module."""
    return General(site.head_dim, site.key_features)
