"""Error bounds for the evaluation of a sub-layer on recorded inputs.

A number is kept as (value, error): the float64 value and the most by which a correct evaluation in the model's dtype may
miss it. With u_o the unit roundoff of that dtype, u_a of the type it accumulates in (float32 or wider), and gamma(n) =
n u_a / (1 - n u_a) (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 3.1):

    W x + b     |W| e + gamma(n + 2) (|W| (|x| + e) + |b|) + u_o (|W x| + |y|)     the product may be rounded before b is added
    f(x)        max |f(t) - f(x)| over |t - x| <= e + k u_o |x|,  + k u_o (|f(x)| + |x|)   k elementary functions, 8 at most
    x y         |x| e_y + |y| e_x + e_x e_y + u_o |x y|
    a x + ...   the sum of |a| e + 2 u_o |a x|, + n u_o of the sum of magnitudes
    layer norm  c = x - mean, s = sqrt(variance + eps), y = w c / s + b:
                e_mean = gamma(M + 2) mean|x|,  variance off by a factor 1 + gamma(2M + 8) sqrt(mean x^2 / variance)
                (Chan, Golub and LeVeque 1983, https://doi.org/10.1080/00031305.1983.10483115, for updating algorithms)
                |w| (e_mean + 4 u_a (|x| + |mean|) + |c| (e_variance / (2 s^2) + 6 u_a)) / s + 3 u_a (|y| + |b|) + u_o |y|
    batch norm  y = w (x - m) / sqrt(v + eps) + b:  6 u_a (|w (x - m) / sqrt(v + eps)| + |b|) + u_o |y|
    rms norm    y = w x / sqrt(mean x^2 + eps):  (gamma(M + 2) / 2 + 6 u_a) |y| + u_o |y|

all times 1.02 for second order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from ..attention.bound import SECOND_ORDER, SMALLEST, UNIT, gamma
from ..differences import double

ELEMENTARY = 8


@dataclass(frozen=True)
class Approximate:
    """`value` in float64 and the `error` that a correct evaluation in `dtype` may have made so far."""

    value: Tensor
    error: Tensor
    dtype: torch.dtype

    @property
    def bound(self) -> Tensor:
        """What may separate a correct evaluation from `value`."""
        return SECOND_ORDER * self.error + SMALLEST[self.dtype]


def exact(tensor: Tensor) -> Approximate:
    """A recorded tensor: exactly what the module was given."""
    value = double(tensor)
    return Approximate(value, torch.zeros_like(value), tensor.dtype)


def widened(x: Approximate, width: int) -> Approximate:
    """A tensor with zeros for the features that a scheme appends."""
    value, error = (functional.pad(tensor, (0, width - x.value.shape[-1])) for tensor in (x.value, x.error))
    return Approximate(value, error, x.dtype)


def units(dtype: torch.dtype) -> tuple[float, float]:
    """(u_o, u_a)."""
    return UNIT[dtype], UNIT[torch.promote_types(dtype, torch.float32)]


def linear(x: Approximate, weight: Tensor, bias: Tensor | None) -> Approximate:
    """x (..., n), weight (m, n), bias (m,) -> (..., m)."""
    u_o, u_a = units(x.dtype)
    W = double(weight)
    product = x.value @ W.T
    shift = torch.zeros(W.shape[0], dtype=torch.float64) if bias is None else double(bias)
    y = product + shift
    magnitude = (x.value.abs() + x.error) @ W.abs().T + shift.abs()
    moved = x.error @ W.abs().T if bool(x.error.any()) else torch.zeros_like(y)
    error = moved + gamma(W.shape[1] + 2, u_a) * magnitude + u_o * (product.abs() + y.abs())
    return Approximate(y, error, x.dtype)


def elementwise(x: Approximate, function: Callable[[Tensor], Tensor]) -> Approximate:
    """f(x) by f itself in float64, at the ends and inside the interval in which the argument may be."""
    u_o, _ = units(x.dtype)
    y = function(x.value)
    reach = x.error + ELEMENTARY * u_o * x.value.abs()
    moved = torch.stack([(function(x.value + share * reach) - y).abs() for share in (-1.0, -0.5, 0.5, 1.0)]).amax(0)
    return Approximate(y, moved + ELEMENTARY * u_o * (y.abs() + x.value.abs()), x.dtype)


def product(x: Approximate, y: Approximate) -> Approximate:
    u_o, _ = units(x.dtype)
    z = x.value * y.value
    return Approximate(z, x.value.abs() * y.error + y.value.abs() * x.error + x.error * y.error + u_o * z.abs(), x.dtype)


def weighted_sum(terms: list[tuple[float, Approximate]]) -> Approximate:
    """sum of a x, each product and each partial sum rounded once or twice."""
    first = terms[0][1]
    u_o, _ = units(first.dtype)
    value = sum((a * x.value for a, x in terms), torch.zeros_like(first.value))
    magnitude = sum(((a * x.value).abs() for a, x in terms), torch.zeros_like(first.value))
    error = sum((abs(a) * x.error for a, x in terms), torch.zeros_like(first.value))
    return Approximate(value, error + (len(terms) + 1) * u_o * magnitude, first.dtype)


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor | None, eps: float) -> Approximate:
    """x (..., M), exact, by the definition."""
    u_o, u_a = units(x.dtype)
    v, w = double(x), double(weight)
    M = v.shape[-1]
    mean = v.mean(-1, keepdim=True)
    c = v - mean
    variance = c.square().mean(-1, keepdim=True)
    s = (variance + eps).sqrt()
    shift = torch.zeros(M, dtype=torch.float64) if bias is None else double(bias)
    y = w * c / s + shift
    e_mean = gamma(M + 2, u_a) * v.abs().mean(-1, keepdim=True)
    condition = (v.square().mean(-1, keepdim=True) / variance.clamp_min(1e-300)).sqrt()
    e_variance = gamma(2 * M + 8, u_a) * condition * variance + e_mean.square()
    error = w.abs() * (e_mean + 4 * u_a * (v.abs() + mean.abs()) + c.abs() * (e_variance / (2 * s * s) + 6 * u_a)) / s
    return Approximate(y, error + 3 * u_a * (y.abs() + shift.abs()) + u_o * y.abs(), x.dtype)


def batch_norm(
    x: Tensor, mean: Tensor, variance: Tensor, weight: Tensor | None, bias: Tensor | None, eps: float
) -> Approximate:
    """x (..., M), exact, with running statistics, by the definition."""
    u_o, u_a = units(x.dtype)
    v, m = double(x), double(mean)
    shift = torch.zeros_like(m) if bias is None else double(bias)
    g = (torch.ones_like(m) if weight is None else double(weight)) / (double(variance) + eps).sqrt()
    y = g * (v - m) + shift
    return Approximate(y, 6 * u_a * (g.abs() * (v - m).abs() + shift.abs()) + u_o * y.abs(), x.dtype)


def rms_norm(x: Tensor, weight: Tensor, eps: float, unit_offset: bool) -> Approximate:
    """x (..., M), exact, by the definition."""
    u_o, u_a = units(x.dtype)
    v = double(x)
    w = double(weight) + (1.0 if unit_offset else 0.0)
    y = w * v / (v.square().mean(-1, keepdim=True) + eps).sqrt()
    return Approximate(y, (gamma(v.shape[-1] + 2, u_a) / 2 + 6 * u_a + u_o) * y.abs(), x.dtype)
