"""The equation of the sub-layer in plain torch, which `tfkit verify` compares whole models with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from . import ConvolutionOptions


def convolution(options: ConvolutionOptions, weights: Mapping[str, Tensor], x: Tensor, call: Any) -> Tensor:
    """Gulati et al. 2020, section 2.2: x (B, L, M); `call.visible` (B, L) is False for padding."""
    values, gates = (x @ weights["enter.weight"].mT + weights["enter.bias"]).chunk(2, -1)
    x = values * torch.sigmoid(gates) * call.visible.unsqueeze(2)
    side = options.width // 2
    windows = functional.pad(x, (0, 0, side, side)).unfold(1, options.width, 1)  # (B, L, M, width)
    x = (windows * weights["window.weight"][:, 0]).sum(-1) + weights["window.bias"]
    return (x * torch.sigmoid(x)) @ weights["leave.weight"].mT + weights["leave.bias"]
