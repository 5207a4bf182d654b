"""Layer normalisation, Ba et al. 2016, equation 4 (https://arxiv.org/abs/1607.06450):

    y = weight * (x - mean(x)) / sqrt(variance(x) + eps) + bias

over the last axis; the variance divides by M, and statistics of half dtypes are taken in float32.
"""

from __future__ import annotations

from torch import nn

from .entries import LayerNormOptions


def build(options: LayerNormOptions, width: int) -> nn.Module:
    """The norm as a module from (..., M) to (..., M)."""
    return nn.LayerNorm(width, eps=options.eps, bias=options.bias)
