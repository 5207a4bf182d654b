"""Linear maps y = x W^T + b while decoding, by whichever of torch's products is the fastest for so many rows on a CPU.

2 to 8 rows are bound by reading W once, where it does not fit in a cache. Torch's own product of (rows, in) with W^T reads
it at half the speed of W times (in, rows): at 4 rows and 37,000 x 512 weights, 8 ms against 4 (bench/greedy.py). One row is
as fast either way.

Other products are bound by arithmetic. Torch multiplies float32 with MKL, which on processors that are not Intel's leaves
half of a core idle; oneDNN, which torch brings for its half types, does not: at 280 rows and 10,000 x 128 weights, 3.7 ms
against 8.3 (bench/translate.py). Its call costs ten microseconds more, so that small products stay with MKL.

All are sums of the same products, in another order.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

FEWEST, MOST = 2, 8
LARGE = 2**18
"""Numbers in a W that few rows are bound by."""
HUGE, FEW = 2**23, 4
"""Numbers in a W, and rows, up to which even oneDNN is bound by reading it."""
ENOUGH = 1_000_000
"""Multiplications per thread from which on oneDNN is the faster."""


def project(linear: nn.Module, x: Tensor, decoding: bool) -> Tensor:
    """`linear(x)` on (B, L, in); while decoding, a plain `nn.Linear` takes the faster way for its rows."""
    if decoding and type(linear) is nn.Linear and not linear._forward_hooks and not linear._forward_pre_hooks:
        held = linear._parameters
        return thin_linear(x, held["weight"], held["bias"])  # type: ignore[arg-type]
    return linear(x)  # type: ignore[no-any-return]


def thin_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (B, L, in), weight (out, in), bias (out,) -> (B, L, out), by whichever product is faster for so many rows."""
    B, L, inner = x.shape
    outer = weight.shape[0]
    count = B * L
    if not x.is_cpu or torch.is_grad_enabled():
        return functional.linear(x, weight, bias)
    size = inner * outer
    few = FEWEST <= count <= MOST and outer >= inner
    if count * size >= ENOUGH * torch.get_num_threads() and _plain(x, weight) and not (few and count <= FEW and size >= HUGE):
        assert ONEDNN is not None
        return ONEDNN(x.reshape(count, inner), weight, bias, "none", [], "").view(B, L, outer)
    if few and size >= LARGE:
        rows = x.reshape(count, inner).t()
        product = torch.mm(weight, rows) if bias is None else torch.addmm(bias[:, None], weight, rows)
        return product.t().reshape(B, L, outer)
    return functional.linear(x, weight, bias)


def _plain(x: Tensor, weight: Tensor) -> bool:
    """Whether nothing but a product of float32 numbers is asked for, and oneDNN is there and not switched off."""
    return (
        ONEDNN is not None
        and x.dtype == weight.dtype == torch.float32
        and torch._C._get_mkldnn_enabled()
        and not torch.compiler.is_compiling()
        and not torch.is_autocast_enabled("cpu")
    )


def _onednn() -> Callable[..., Tensor] | None:
    """The product that torch's compiler calls on a CPU. It is no public name, so a torch in which it is not what it was does
    without."""
    if not torch._C._has_mkldnn:
        return None
    try:
        product: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise
        one = torch.ones(2, 3)
        found = product(one, one, torch.ones(2), "none", [], "")
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return None
    return product if torch.equal(found, torch.full((2, 2), 4.0)) else None


ONEDNN = _onednn()
