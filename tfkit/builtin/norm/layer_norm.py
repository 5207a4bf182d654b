"""Layer normalisation, Ba et al. 2016, equation 4 (https://arxiv.org/abs/1607.06450):

    y = weight * (x - mean(x)) / sqrt(variance(x) + eps) + bias

over the last axis. The variance divides by M; statistics of half dtypes are computed in float32.

The module is torch.nn.LayerNorm. On a CPU it stores 1/sqrt(variance + eps) in the dtype of x. In float16 this overflows for a
vector of equal numbers if eps < 65504^-2 = 2.3e-10, and the gradients of x and weight become NaN. bfloat16 has no such limit.
"""

from __future__ import annotations

from torch import nn

from .entries import LayerNormOptions


def build(options: LayerNormOptions, width: int) -> nn.Module:
    """The norm as a module from (..., M) to (..., M)."""
    return nn.LayerNorm(width, eps=options.eps, elementwise_affine=options.affine, bias=options.bias)
