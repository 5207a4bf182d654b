"""The plain equation that `tfkit conformance` and `tfkit verify` check the norm against."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from . import NormOptions


def root_mean_square(options: NormOptions, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """y = weight x / sqrt(mean(x^2) + eps), Zhang and Sennrich 2019, equation 4 (https://arxiv.org/abs/1910.07467)."""
    return weights["weight"] * x / torch.sqrt((x**2).mean(-1, keepdim=True) + options.eps)
