"""How a vector p of P features for a position meets the embedding x of M features:

add       y = x + p                 P = M
concat    y = W [x; p]              back to M features
append    y = [x; p]                M + P features, the width of every node that follows
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...slots.position import PositionSite
from .entries_embedding import CombineOptions, features


def projection(options: CombineOptions, site: PositionSite) -> nn.Linear | None:
    """W of `concat`, (M, M + P); None for the others."""
    inner = site.width + features(options, site)
    return nn.Linear(inner, site.width, bias=False) if options.combine == "concat" else None


def combined(x: Tensor, p: Tensor, combine: str, linear: nn.Linear | None) -> Tensor:
    """x (B, L, M) and p (L, P) or (B, L, P), of one dtype, to (B, L, M) or (B, L, M + P)."""
    if combine == "add":
        return x + p
    both = torch.cat((x, p.expand(*x.shape[:-1], -1)), dim=-1)
    if linear is None:
        return both
    projected: Tensor = linear(both)
    return projected
