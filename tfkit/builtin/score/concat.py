"""Concat score, Luong et al. 2015, section 3.1 (https://arxiv.org/abs/1508.04025):

    score(q, k) = v . tanh(W [q; k])

W [q; k] = W_q q + W_k k, so that each query and key is projected once, not once per pair.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...slots.score import ScoreSite
from .entries import HiddenOptions


class Concat(nn.Module):
    """Maps query (B,H,Q,D) and key (B,G,K,D) to scores (B,H,Q,K). The hidden layer has shape (B,H,Q,K,d_score)."""

    def __init__(self, head_dim: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden, 2 * head_dim))
        self.out = nn.Linear(hidden, 1, bias=False)

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        of_query, of_key = self.weight.chunk(2, dim=1)
        query, key = query.to(self.weight.dtype), key.to(self.weight.dtype)  # narrower than the weights under autocast
        keys = functional.linear(key, of_key).repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        scores: Tensor = self.out(torch.tanh(functional.linear(query, of_query).unsqueeze(3) + keys.unsqueeze(2)))
        return scores.squeeze(4)


def build(options: HiddenOptions, site: ScoreSite) -> nn.Module:
    """The score as a module."""
    return Concat(site.head_dim, options.d_score or site.head_dim)
