"""The plain equation that `tfkit conformance` and `tfkit verify` check the activation against."""

from __future__ import annotations

import torch
from torch import Tensor

from tfkit.plugin import NoOptions


def mish(options: NoOptions, x: Tensor) -> Tensor:
    """f(x) = x tanh(ln(1 + e^x)), Misra 2019, equation 1 (https://arxiv.org/abs/1908.08681)."""
    return x * torch.tanh(torch.logaddexp(x, torch.zeros_like(x)))
