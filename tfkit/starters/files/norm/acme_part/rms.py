"""Root mean square normalisation, Zhang and Sennrich 2019, equation 4 (https://arxiv.org/abs/1910.07467):

y = weight * x / sqrt(mean(x^2) + eps)        over the last axis

Half dtypes are computed in float32 and rounded once, at the end.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from . import NormOptions


class RootMeanSquare(nn.Module):
    """(..., M) -> (..., M), in the dtype of x."""

    def __init__(self, width: int, eps: float) -> None:
        super().__init__()
        self.eps = eps
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        normed = wide * torch.rsqrt(wide.square().mean(-1, keepdim=True) + self.eps)
        return (self.weight * normed).to(x.dtype)


def build(options: NormOptions, width: int) -> nn.Module:
    return RootMeanSquare(width, options.eps)
