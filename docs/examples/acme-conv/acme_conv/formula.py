"""The plain equation that `tfkit verify` checks the sub-layer against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from . import ConvolutionOptions


def convolution(options: ConvolutionOptions, weights: Mapping[str, Tensor], x: Tensor, call: Any) -> Tensor:
    """W_2 silu(b + sum_k w_k g_(t + k - (width - 1) / 2)), with g = a sigmoid(c), [a; c] = W_1 x, and g = 0 at padding."""
    a, c = (x @ weights["enter.weight"].mT + weights["enter.bias"]).chunk(2, -1)
    gated = (a / (1 + torch.exp(-c))).masked_fill(~call.visible[..., None], 0.0)
    side = (options.width - 1) // 2
    windows = functional.pad(gated, (0, 0, side, side)).unfold(1, options.width, 1)  # (B, L, M, width)
    y = (windows * weights["window.weight"][:, 0]).sum(-1) + weights["window.bias"]
    return (y / (1 + torch.exp(-y))) @ weights["leave.weight"].mT + weights["leave.bias"]
