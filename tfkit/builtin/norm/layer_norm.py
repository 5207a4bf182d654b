"""Layer normalisation, Ba et al. 2016, equation 4 (https://arxiv.org/abs/1607.06450):

    y = weight * (x - mean(x)) / sqrt(variance(x) + eps) + bias

over the last axis; the variance divides by M, and statistics of half dtypes are taken in float32.

It is torch's own. On a CPU that keeps 1/sqrt(variance + eps) in the dtype of x: in float16 it overflows at a vector of equal
numbers where eps < 65504^-2 = 2.3e-10, and the gradients of x and of the weight are NaN there. bfloat16 has no such limit.
"""

from __future__ import annotations

from torch import nn

from .entries import LayerNormOptions


def build(options: LayerNormOptions, width: int) -> nn.Module:
    """The norm as a module from (..., M) to (..., M)."""
    return nn.LayerNorm(width, eps=options.eps, elementwise_affine=options.affine, bias=options.bias)
