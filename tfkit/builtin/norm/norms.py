"""The built-in norms, from (..., M) to (..., M)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...nn.runtime.node_output import BatchwiseNorm
from ...plugin import NoOptions
from .entries import BatchNormOptions, LayerNormOptions, RmsNormOptions


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


class BatchNorm(BatchwiseNorm):
    """Batch normalisation, Ioffe and Szegedy 2015, algorithm 1 (https://arxiv.org/abs/1502.03167):

        y = weight * (x - mean) / sqrt(variance + eps) + bias

    of each feature. In training mean and variance (over n) are those of the n tokens of the batch that are not padding, as Shen
    et al. 2020 count them (https://arxiv.org/abs/2003.07845); a causal stack counts later tokens too. In evaluation they are
    the running statistics, which training moves by `momentum`:

        running_mean = (1 - momentum) running_mean + momentum mean
        running_var  = (1 - momentum) running_var  + momentum variance n / (n - 1)        unless n = 1

    Each process of several counts its own rows. With DDP the running statistics are those of the first process. Recomputed
    activations move them once. Half dtypes are computed in float32 and rounded once, at the end.
    """

    running_mean: Tensor
    running_var: Tensor

    def __init__(self, width: int, eps: float, momentum: float, affine: bool) -> None:
        super().__init__()
        self.width, self.eps, self.momentum = width, eps, momentum
        self.weight = nn.Parameter(torch.ones(width)) if affine else None
        self.bias = nn.Parameter(torch.zeros(width)) if affine else None
        self.register_buffer("running_mean", torch.zeros(width))
        self.register_buffer("running_var", torch.ones(width))

    def forward(self, x: Tensor, real: Tensor | None = None) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        mean, variance = self._batch_statistics(wide, real) if self.training else (self.running_mean, self.running_var)
        y = (wide - mean) * torch.rsqrt(variance.to(wide.dtype) + self.eps)
        if self.weight is not None and self.bias is not None:
            y = y * self.weight + self.bias
        return y.to(x.dtype)

    def _batch_statistics(self, x: Tensor, real: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean (M,) and variance (M,) of the real tokens of x, which the running statistics take in."""
        counted = torch.ones_like(x[..., :1], dtype=torch.bool) if real is None else real.unsqueeze(-1)
        axes, count = tuple(range(x.dim() - 1)), counted.sum()
        mean = x.masked_fill(~counted, 0.0).sum(axes) / count.clamp_min(1)
        variance = (x - mean).masked_fill(~counted, 0.0).square().sum(axes) / count.clamp_min(1)
        recomputed = not torch.compiler.is_compiling() and torch._C._current_graph_task_id() != -1  # in a backward pass
        if not recomputed:
            with torch.no_grad():
                unbiased = variance * count / (count - 1).clamp_min(1)
                for running, new in ((self.running_mean, mean), (self.running_var, unbiased)):
                    running.copy_(running + (count > 1) * (self.momentum * (new - running)))
        return mean, variance

    def extra_repr(self) -> str:
        return f"{self.width}, eps={self.eps}, momentum={self.momentum}"


def batch_norm(options: BatchNormOptions, width: int) -> nn.Module:
    """The norm as a module from (..., M) to (..., M)."""
    return BatchNorm(width, options.eps, options.momentum, options.affine)
