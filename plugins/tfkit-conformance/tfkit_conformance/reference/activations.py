"""The formulas of the built-in activations: f(x), elementwise. A gated layer multiplies f(gate x) with another map of x."""

from __future__ import annotations

from math import pi, sqrt
from typing import Any

import torch
from torch import Tensor


def relu(options: Any, x: Tensor) -> Tensor:
    """max(0, x)"""
    return torch.where(x > 0, x, torch.zeros_like(x))


def relu_squared(options: Any, x: Tensor) -> Tensor:
    """max(0, x)^2, So et al. 2021, section 3.1 (https://arxiv.org/abs/2109.08668)."""
    return relu(options, x) ** 2


def gelu(options: Any, x: Tensor) -> Tensor:
    """x Phi(x), with the distribution function Phi of the standard normal, Hendrycks and Gimpel 2016, section 2
    (https://arxiv.org/abs/1606.08415). erfc keeps the digits of Phi far below zero."""
    return x * 0.5 * torch.erfc(-x / sqrt(2.0))


def gelu_tanh(options: Any, x: Tensor) -> Tensor:
    """0.5 x (1 + tanh(sqrt(2 / pi) (x + 0.044715 x^3))), the approximation of the same section.

    0.5 (1 + tanh(z)) is sigmoid(2 z), which keeps its digits far below zero.
    """
    return x * sigmoid(2.0 * sqrt(2.0 / pi) * (x + 0.044715 * x**3))


def quick_gelu(options: Any, x: Tensor) -> Tensor:
    """x sigmoid(1.702 x), the other approximation of the same section."""
    return x * sigmoid(1.702 * x)


def silu(options: Any, x: Tensor) -> Tensor:
    """x sigmoid(x), Elfwing et al. 2017, equation 9 (https://arxiv.org/abs/1702.03118)."""
    return x * sigmoid(x)


def tanh(options: Any, x: Tensor) -> Tensor:
    """(e^x - e^-x) / (e^x + e^-x)"""
    return torch.tanh(x)


def identity(options: Any, x: Tensor) -> Tensor:
    """x"""
    return x


def glu(options: Any, x: Tensor) -> Tensor:
    """sigmoid(x), Dauphin et al. 2016, equation 1 (https://arxiv.org/abs/1612.08083)."""
    return sigmoid(x)


def sigmoid(x: Tensor) -> Tensor:
    """1 / (1 + e^-x), without overflow."""
    small = torch.exp(-x.abs())
    return torch.where(x >= 0, 1.0, small) / (1.0 + small)


GATED = frozenset({"glu", "reglu", "geglu", "geglu_tanh", "swiglu"})
"""The names that stand for a gated layer."""

FORMULAS = {
    "relu": relu,
    "relu_squared": relu_squared,
    "gelu": gelu,
    "gelu_tanh": gelu_tanh,
    "quick_gelu": quick_gelu,
    "silu": silu,
    "tanh": tanh,
    "identity": identity,
    "glu": glu,
    "reglu": relu,  # Shazeer 2020, equation 5 (https://arxiv.org/abs/2002.05202): the gate of each
    "geglu": gelu,
    "geglu_tanh": gelu_tanh,
    "swiglu": silu,
}
