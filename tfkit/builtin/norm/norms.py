"""The built-in norms, from (..., M) to (..., M)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...plugin import NoOptions
from .entries import LayerNormOptions, RmsNormOptions


def no_norm(options: NoOptions, width: int) -> nn.Module:
    """No norm: y = x."""
    return nn.Identity()


def layer_norm(options: LayerNormOptions, width: int) -> nn.Module:
    """Layer normalisation, Ba et al. 2016, equation 4 (https://arxiv.org/abs/1607.06450):

        y = weight * (x - mean(x)) / sqrt(variance(x) + eps) + bias

    over the last axis. The variance divides by M; statistics of half dtypes are computed in float32.

    The module is torch.nn.LayerNorm. On a CPU it stores 1/sqrt(variance + eps) in the dtype of x. In float16 this overflows for
    a vector of equal numbers if eps < 65504^-2 = 2.3e-10, and the gradients of x and weight become NaN. bfloat16 has no such
    limit.
    """
    return nn.LayerNorm(width, eps=options.eps, elementwise_affine=options.affine, bias=options.bias)


class RmsNorm(nn.Module):
    """Root mean square normalisation, Zhang and Sennrich 2019, equation 4 (https://arxiv.org/abs/1910.07467):

        y = weight * x / sqrt(mean(x^2) + eps)              over the last axis
        y = (1 + weight) * x / sqrt(mean(x^2) + eps)        with `unit_offset`
        y = x / sqrt(mean(x^2) + eps)                       with `affine: false`

    Half dtypes are computed in float32 and rounded once, at the end.

    Divides each vector of `width` features: (..., M) to (..., M), in the dtype of x.
    """

    def __init__(self, width: int, eps: float, unit_offset: bool, affine: bool = True) -> None:
        super().__init__()
        self.width, self.eps, self.unit_offset = width, eps, unit_offset
        self.weight = nn.Parameter(torch.zeros(width) if unit_offset else torch.ones(width)) if affine else None

    def forward(self, x: Tensor) -> Tensor:
        if self.weight is None:
            wide = torch.promote_types(x.dtype, torch.float32)
            return functional.rms_norm(x.to(wide), (self.width,), None, self.eps).to(x.dtype)
        weight: Tensor = self.weight
        if self.unit_offset:
            # 1 + w in a half dtype would round small w away.
            weight = weight.to(torch.promote_types(weight.dtype, torch.float32)) + 1.0
        common = torch.promote_types(x.dtype, weight.dtype)
        return functional.rms_norm(x.to(common), weight.shape, weight.to(common), self.eps).to(x.dtype)

    def extra_repr(self) -> str:
        return f"{self.width}, eps={self.eps}, unit_offset={self.unit_offset}"


def rms_norm(options: RmsNormOptions, width: int) -> nn.Module:
    """The norm as a module from (..., M) to (..., M)."""
    return RmsNorm(width, options.eps, options.unit_offset, options.affine)
