"""Additive score, Bahdanau et al. 2015, appendix A.1.2 (https://arxiv.org/abs/1409.0473):

score(q, k) = v . tanh(W q + U k)
"""

from __future__ import annotations

from torch import Tensor, nn

from ...plugin import expand_heads
from ...slots.score import ScoreSite
from .entries import HiddenOptions
from .score_module import ScoreModule
from .tanh_sum import TanhSum


class Additive(ScoreModule):
    """Maps query (B,H,Q,D) and mapped key (B,G,K,d_score) to scores (B,H,Q,K)."""

    def __init__(self, head_dim: int, key_dim: int, hidden: int) -> None:
        super().__init__()
        self.query = nn.Linear(head_dim, hidden, bias=False)
        self.key = nn.Linear(key_dim, hidden, bias=False)
        self.out = TanhSum(hidden)

    def map_keys(self, key: Tensor) -> Tensor:
        """U k: (B,G,K,key_dim) -> (B,G,K,d_score)."""
        mapped: Tensor = self.key(key.to(self.out.weight.dtype))
        return mapped.to(key.dtype)

    def scores(self, query: Tensor, mapped: Tensor) -> Tensor:
        dtype = self.out.weight.dtype  # under autocast the weights are wider than query and key
        keys = expand_heads(mapped.to(dtype), query.shape[1])
        scores: Tensor = self.out(self.query(query.to(dtype)), keys)
        return scores


def build(options: HiddenOptions, site: ScoreSite) -> nn.Module:
    """The score as a module."""
    return Additive(site.head_dim, site.key_features, options.d_score or site.head_dim)
