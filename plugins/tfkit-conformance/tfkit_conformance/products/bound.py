"""The largest error of an int8 product y = x W^T + b with a scale for each row of x and each output channel.

Rounding to n levels moves a number of row r by at most s_r / 2, s_r = max_k |x_rk| / n, and a weight of channel j by at most
t_j / 2, t_j = max_k |w_jk| / m. The sum of integers is exact, so

    |y_rj - y'_rj| <= s_r / 2 sum_k |w_jk| + t_j / 2 sum_k |x_rk| + K s_r t_j / 4 + roundings of float32
"""

from __future__ import annotations

import torch
from torch import Tensor

ROUNDING = 2.0**-24
SLACK = 2.0**-10
"""A number is divided by its scale in float32 before it is rounded to an integer: ties may go either way."""
SMALLEST = 1e-30
"""Smaller numbers may be taken for zeros."""


def product_bound(x: Tensor, weight: Tensor, bias: Tensor | None, levels: int, weight_levels: int) -> Tensor:
    """The largest error of each element, (N, out) float64.

    Args:
        x: (N, in), finite.
        weight: (out, in), finite.
        bias: (out,), or None.
        levels: largest integer of an activation.
        weight_levels: largest integer of a weight.
    """
    x, weight = x.double().abs(), weight.double().abs()
    step = x.amax(1, keepdim=True).clamp(min=SMALLEST) / levels  # (N, 1)
    channel_step = weight.amax(1).clamp(min=SMALLEST) / weight_levels  # (out,)
    moved = step / 2 * weight.sum(1) + x.sum(1, keepdim=True) / 2 * channel_step + x.shape[1] / 4 * step * channel_step
    size = x @ weight.t() + (0.0 if bias is None else bias.double().abs())
    return (1 + SLACK) * moved + 8 * ROUNDING * size


def exact_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b in float64, (N, out)."""
    return torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
