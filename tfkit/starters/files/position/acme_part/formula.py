"""The plain equation that `tfkit conformance` and `tfkit verify` check the scheme against."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tfkit.plugin import NoOptions
from tfkit.plugin.model_parts import PositionSite


def penalty(
    options: NoOptions, site: PositionSite, weights: Mapping[str, Tensor], query: Tensor, distances: Tensor, scale: float
) -> Tensor:
    """bias[h, i, j] = -2^(-8 h / H) |j - i|, h = 1 .. H, of the distances j - i (Q, K): (1,H,Q,K)."""
    heads = torch.arange(1, site.heads + 1, dtype=query.dtype, device=query.device)
    return -(2.0 ** (-8 * heads / site.heads))[None, :, None, None] * distances.abs()
