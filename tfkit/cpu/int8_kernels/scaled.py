"""Products of rows that are scaled in torch, around a kernel that knows no rows: y_r = s_r (x_r / s_r) W^T + b."""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

from ..int8 import SMALLEST

INTEGER = 1.5 * 2**23
"""Adding this rounds to the nearest integer, which the last bits then hold: from 2^23 to 2^24 float32 has no fractions."""


def scaled_product(x: Tensor, bias: Tensor | None, levels: int, multiply: Callable[[Tensor], Tensor]) -> Tensor:
    """x W^T + b.

    Args:
        x: (N, in)
        bias: (out,), or None.
        levels: the largest integer of an activation.
        multiply: rows (N, in) between -levels and levels, which it may overwrite -> (N, out), the products of the rounded rows
            times the scales of the channels.

    Returns:
        (N, out). Rows with NaN or infinity are multiplied in float32.
    """
    largest = x.abs().amax(1, keepdim=True)  # (N, 1)
    scales = largest.clamp(min=SMALLEST).div_(levels)
    y = multiply(x / scales).mul_(scales)
    if not math.isfinite(float(largest.max())):
        rows = ~largest[:, 0].isfinite()
        unit = torch.eye(x.shape[1], device="cpu")
        weight = multiply(levels * unit).div_(levels).t()  # (out, in), as the products of other rows use it
        y[rows] = functional.linear(x[rows], weight)
    return y if bias is None else y.add_(bias)
