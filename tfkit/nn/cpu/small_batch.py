"""Linear maps y = x W^T + b while decoding on a CPU, with the fastest kernel for the number of rows.

For 2 to 8 rows and a W larger than the cache, the time is that of reading W once. Torch's product of (rows, in) with W^T
reads it at half the speed of W times (in, rows): 8 ms instead of 4 for 4 rows and 37,000 x 512 weights (bench/greedy.py). For
one row both are equal.

Other products are bound by arithmetic. Where MKL is slow, oneDNN computes them (onednn.py): 3.7 ms instead of 8.3 for 280 rows
and 10,000 x 128 weights (bench/translate.py). Its call costs 10 microseconds more, so MKL keeps the small products. Weights
that a search uses repeatedly are packed (prepacked.py).

All kernels sum the same products, in different order.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from .linear import linear
from .onednn import can_multiply, product
from .prepacked import PrepackedWeights

MIN_ROWS, MAX_ROWS = 2, 8
LARGE = 2**18
"""From this many elements on, reading W bounds a product with few rows."""
HUGE, FEW = 2**23, 4
"""From `HUGE` elements of W on, reading W bounds a product with up to `FEW` rows even with oneDNN."""
ENOUGH, ENOUGH_PACKED = 1_000_000, 700_000
"""From this many multiplications per thread on, oneDNN is faster: with a plain and with a packed weight."""


def project(module: nn.Module, x: Tensor, prepacked: PrepackedWeights | None) -> Tensor:
    """`module(x)`, (..., in) -> (..., out), with a faster kernel for a plain `nn.Linear` without hooks.

    Args:
        module: the linear map; any module is called as it is.
        x: (..., in); (B, L, in) with `prepacked`.
        prepacked: the packed weights of a search, or None outside of decoding.
    """
    own = module._parameters
    if type(module) is not nn.Linear or "weight" not in own or (not torch.compiler.is_compiling() and _has_hooks(module)):
        return module(x)  # type: ignore[no-any-return]
    weight, bias = own["weight"], own["bias"]
    return linear(x, weight, bias) if prepacked is None else small_batch_linear(x, weight, bias, prepacked)  # type: ignore[arg-type]


def small_batch_linear(x: Tensor, weight: Tensor, bias: Tensor | None, prepacked: PrepackedWeights) -> Tensor:
    """x (B, L, in), weight (out, in), bias (out,) -> (B, L, out), with the fastest kernel for B * L rows."""
    B, L, inner = x.shape
    outer = weight.shape[0]
    count = B * L
    if not x.is_cpu or torch.is_grad_enabled():
        return functional.linear(x, weight, bias)
    size = inner * outer
    few = MIN_ROWS <= count <= MAX_ROWS and outer >= inner
    per_thread = count * size / torch.get_num_threads()
    if per_thread >= ENOUGH_PACKED and can_multiply(x, weight, bias):
        packed = prepacked.of(weight, count)
        if packed is not weight or (per_thread >= ENOUGH and not (few and count <= FEW and size >= HUGE)):
            return product(x.reshape(count, inner), packed, bias).view(B, L, outer)
    if few and size >= LARGE:
        rows = x.reshape(count, inner).t()  # (in, B * L)
        columns = torch.mm(weight, rows) if bias is None else torch.addmm(bias[:, None], weight, rows)  # (out, B * L)
        return columns.t().reshape(B, L, outer)
    return functional.linear(x, weight, bias)


def _has_hooks(module: nn.Module) -> bool:
    """Whether the module has hooks, or a `forward` that replaces the one of its class."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
        or torch.nn.modules.module._has_any_global_hook()  # type: ignore[no-untyped-call]
    )
