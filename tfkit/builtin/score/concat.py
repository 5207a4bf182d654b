"""Concat score, Luong et al. 2015, section 3.1 (https://arxiv.org/abs/1508.04025):

    score(q, k) = v . tanh(W [q; k])

W [q; k] = W_q q + W_k k, so that each query and key is projected once, not once per pair.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...plugin import expand_heads
from ...slots.score import ScoreSite
from .entries import HiddenOptions
from .score_module import ScoreModule
from .tanh_sum import TanhSum


class Concat(ScoreModule):
    """Maps query (B,H,Q,D) and mapped key (B,G,K,d_score) to scores (B,H,Q,K)."""

    def __init__(self, head_dim: int, key_dim: int, hidden: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.weight = nn.Parameter(torch.empty(hidden, head_dim + key_dim))
        self.out = TanhSum(hidden)

    def map_keys(self, key: Tensor) -> Tensor:
        """W_k k: (B,G,K,key_dim) -> (B,G,K,d_score)."""
        return functional.linear(key.to(self.weight.dtype), self.weight[:, self.head_dim :]).to(key.dtype)

    def scores(self, query: Tensor, mapped: Tensor) -> Tensor:
        dtype = self.weight.dtype  # under autocast the weights are wider than query and key
        keys = expand_heads(mapped.to(dtype), query.shape[1])
        scores: Tensor = self.out(functional.linear(query.to(dtype), self.weight[:, : self.head_dim]), keys)
        return scores


def build(options: HiddenOptions, site: ScoreSite) -> nn.Module:
    """The score as a module."""
    return Concat(site.head_dim, site.key_features, options.d_score or site.head_dim)
