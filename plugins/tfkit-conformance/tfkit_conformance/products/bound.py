"""The largest error of a product y = x W^T + b of which a format rounds x by at most dx_rk and W by at most dw_jk:

    |y_rj - y'_rj| <= sum_k (dx_rk |w_jk| + |x_rk| dw_jk + dx_rk dw_jk) + roundings of the sum and of the result

int8 with a scale for each row of x and each output channel: dx_rk = max_k |x_rk| / (2 n) and dw_jk = max_k |w_jk| / (2 m), with
n and m levels. The sum of integers is exact.

float32 does not round x and w. A sum may be in any order.

bfloat16 has 8 bits of precision: dx_rk = 2^-8 |x_rk|, dw_jk = 2^-8 |w_jk|. The sum is that of float32, and the result is
rounded by at most 2^-8 of its size.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

ROUNDING = 2.0**-24
"""Of float32."""
HALF_STEP = 2.0**-8
"""Of bfloat16, relative to a number."""
SLACK = 2.0**-10
"""A number is divided by its scale in float32 before it is rounded to an integer: ties may go either way."""
SMALLEST = 1e-30
"""Smaller numbers may be taken for zeros."""


class Format(Protocol):
    """What numbers are rounded to. `name` is that of the rule in reports."""

    @property
    def name(self) -> str: ...

    def activation_error(self, x: Tensor) -> Tensor:
        """The most that each number of x (N, in) float64 is moved by, (N, in) or (N, 1)."""

    def weight_error(self, weight: Tensor) -> Tensor:
        """The most that each number of a weight (out, in) float64 is moved by, (out, in) or (out, 1)."""

    def sum_error(self, result: Tensor, size: Tensor, inner: int) -> Tensor:
        """The most that a sum of `inner` products and its result are rounded by; `size` is the sum of absolute values."""


@dataclass(frozen=True)
class Int8:
    """`levels` and `weight_levels` are the largest integers of an activation and of a weight."""

    levels: int = 127
    weight_levels: int = 127
    name: str = "int8"

    def activation_error(self, x: Tensor) -> Tensor:
        return x.abs().amax(1, keepdim=True).clamp(min=SMALLEST) / (2 * self.levels)

    def weight_error(self, weight: Tensor) -> Tensor:
        return weight.abs().amax(1, keepdim=True).clamp(min=SMALLEST) / (2 * self.weight_levels)

    def sum_error(self, result: Tensor, size: Tensor, inner: int) -> Tensor:
        return 8 * ROUNDING * size


@dataclass(frozen=True)
class Bfloat16:
    name: str = "bfloat16"

    def activation_error(self, x: Tensor) -> Tensor:
        return HALF_STEP * x.abs() + SMALLEST

    def weight_error(self, weight: Tensor) -> Tensor:
        return self.activation_error(weight)

    def sum_error(self, result: Tensor, size: Tensor, inner: int) -> Tensor:
        return HALF_STEP * result.abs() + (inner + 8) * ROUNDING * size


@dataclass(frozen=True)
class Float32:
    name: str = "float32"

    def activation_error(self, x: Tensor) -> Tensor:
        return torch.zeros_like(x)

    def weight_error(self, weight: Tensor) -> Tensor:
        return torch.zeros_like(weight)

    def sum_error(self, result: Tensor, size: Tensor, inner: int) -> Tensor:
        return (inner + 8) * ROUNDING * size


def product_bound(x: Tensor, weight: Tensor, bias: Tensor | None, format: Format) -> Tensor:
    """The largest error of each element, (N, out) float64.

    Args:
        x: (N, in), finite.
        weight: (out, in), finite.
        bias: (out,), or None.
        format: what numbers are rounded to.
    """
    exact = exact_product(x, weight, None).abs()
    x, weight = x.double().abs(), weight.double().abs()
    dx, dw = format.activation_error(x).expand_as(x), format.weight_error(weight).expand_as(weight)
    moved = dx @ weight.t() + x @ dw.t() + dx @ dw.t()
    size = x @ weight.t() + moved + (0.0 if bias is None else bias.double().abs())
    return (1 + SLACK) * moved + format.sum_error(exact + moved, size, x.shape[1])


def exact_product(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x W^T + b in float64, (N, out)."""
    return torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double())
