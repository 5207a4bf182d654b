"""Linear maps of few rows, as a decoder takes them step by step: y = x W^T + b for x of 2 to 8 rows.

The product is bound by reading W once. Torch's CPU product of (rows, in) with W^T reads it at half the speed of W times
(in, rows): at 4 rows and 37,000 x 512 weights, 8 ms against 4 (bench/greedy.py). One row is as fast either way, and many rows
are no longer bound by W.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

FEWEST, MOST = 2, 8


def project(linear: nn.Module, x: Tensor, stepwise: bool) -> Tensor:
    """`linear(x)` on (B, L, in); while decoding step by step, a plain `nn.Linear` takes the faster way for few rows."""
    if stepwise and type(linear) is nn.Linear and not linear._forward_hooks and not linear._forward_pre_hooks:
        return thin_linear(x, linear.weight, linear.bias)
    return linear(x)  # type: ignore[no-any-return]


def thin_linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (B, L, in), weight (out, in), bias (out,) -> (B, L, out), by whichever product is faster for so many rows."""
    B, L, inner = x.shape
    outer = weight.shape[0]
    if not FEWEST <= B * L <= MOST or outer < inner or x.device.type != "cpu" or torch.is_grad_enabled():
        return functional.linear(x, weight, bias)
    rows = x.reshape(B * L, inner).t()
    product = torch.mm(weight, rows) if bias is None else torch.addmm(bias[:, None], weight, rows)
    return product.t().reshape(B, L, outer)
