"""Linear maps y = x W^T + b while decoding, by whichever of torch's products is the fastest for so many rows on a CPU.

2 to 8 rows are bound by reading W once, where it does not fit in a cache. Torch's own product of (rows, in) with W^T reads
it at half the speed of W times (in, rows): at 4 rows and 37,000 x 512 weights, 8 ms against 4 (bench/greedy.py). One row is
as fast either way.

Other products are bound by arithmetic, and where MKL is slow at it oneDNN takes them (nn/onednn.py): at 280 rows and
10,000 x 128 weights, 3.7 ms against 8.3 (bench/translate.py). Its call costs ten microseconds more, so that small products
stay with MKL. Weights that a search uses again and again are packed for it (nn/packed.py).

All are sums of the same products, in another order.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from .linear import linear
from .onednn import can_multiply, product
from .prepacked import PrepackedWeights

FEWEST, MOST = 2, 8
LARGE = 2**18
"""Numbers in a W that few rows are bound by."""
HUGE, FEW = 2**23, 4
"""Numbers in a W, and rows, up to which even oneDNN is bound by reading it."""
ENOUGH, ENOUGH_PACKED = 1_000_000, 700_000
"""Multiplications per thread from which on oneDNN is the faster, and with a packed weight."""


def project(module: nn.Module, x: Tensor, prepacked: PrepackedWeights | None) -> Tensor:
    """`module(x)` on (..., in); a plain `nn.Linear` takes the faster way, while decoding, which has packed weights, that of
    (B, L, in) for its rows."""
    held = module._parameters
    if type(module) is not nn.Linear or "weight" not in held or (not torch.compiler.is_compiling() and _is_watched(module)):
        return module(x)  # type: ignore[no-any-return]
    weight, bias = held["weight"], held["bias"]
    return linear(x, weight, bias) if prepacked is None else small_batch_linear(x, weight, bias, prepacked)  # type: ignore[arg-type]


def small_batch_linear(x: Tensor, weight: Tensor, bias: Tensor | None, prepacked: PrepackedWeights) -> Tensor:
    """x (B, L, in), weight (out, in), bias (out,) -> (B, L, out), by whichever product is faster for so many rows."""
    B, L, inner = x.shape
    outer = weight.shape[0]
    count = B * L
    if not x.is_cpu or torch.is_grad_enabled():
        return functional.linear(x, weight, bias)
    size = inner * outer
    few = FEWEST <= count <= MOST and outer >= inner
    each = count * size / torch.get_num_threads()
    if each >= ENOUGH_PACKED and can_multiply(x, weight, bias):
        laid = prepacked.of(weight, count)
        if laid is not weight or (each >= ENOUGH and not (few and count <= FEW and size >= HUGE)):
            return product(x.reshape(count, inner), laid, bias).view(B, L, outer)
    if few and size >= LARGE:
        rows = x.reshape(count, inner).t()
        columns = torch.mm(weight, rows) if bias is None else torch.addmm(bias[:, None], weight, rows)
        return columns.t().reshape(B, L, outer)
    return functional.linear(x, weight, bias)


def _is_watched(module: nn.Module) -> bool:
    """Whether a call of the module does more than its `forward`, or that is not its class's."""
    return bool(
        module._forward_hooks
        or module._forward_pre_hooks
        or module._backward_hooks
        or module._backward_pre_hooks
        or "forward" in module.__dict__
        or torch.nn.modules.module._has_any_global_hook()  # type: ignore[no-untyped-call]
    )
