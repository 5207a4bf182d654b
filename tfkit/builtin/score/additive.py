"""Additive score, Bahdanau et al. 2015, appendix A.1.2 (https://arxiv.org/abs/1409.0473):

score(q, k) = v . tanh(W q + U k)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...slots.score import ScoreSite
from .entries import HiddenOptions


class Additive(nn.Module):
    """Maps query (B,H,Q,D) and key (B,G,K,D) to scores (B,H,Q,K). The hidden layer has shape (B,H,Q,K,d_score)."""

    def __init__(self, head_dim: int, hidden: int) -> None:
        super().__init__()
        self.query = nn.Linear(head_dim, hidden, bias=False)
        self.key = nn.Linear(head_dim, hidden, bias=False)
        self.out = nn.Linear(hidden, 1, bias=False)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        dtype = self.out.weight.dtype  # under autocast the weights are wider than query and key
        keys = self.key(key.to(dtype)).repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        scores: Tensor = self.out(torch.tanh(self.query(query.to(dtype)).unsqueeze(3) + keys.unsqueeze(2)))
        return scores.squeeze(4)


def build(options: HiddenOptions, site: ScoreSite) -> nn.Module:
    """The score as a module."""
    return Additive(site.head_dim, options.d_score or site.head_dim)
