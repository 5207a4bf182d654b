"""The formulas of the built-in norms, over the last axis."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def layer_norm(options: Any, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """g (x - mean) / sqrt(variance + eps) + b, Ba et al. 2016, equation 4 (https://arxiv.org/abs/1607.06450)."""
    centred = x - x.mean(-1, keepdim=True)
    y = centred / torch.sqrt((centred**2).mean(-1, keepdim=True) + options.eps)
    if not options.affine:
        return y
    return y * weights["weight"] + weights["bias"] if options.bias else y * weights["weight"]


def rms_norm(options: Any, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """g x / sqrt(mean(x^2) + eps), Zhang and Sennrich 2019, equation 4 (https://arxiv.org/abs/1910.07467).

    Gemma's weight is g - 1 (`unit_offset`).
    """
    y = x / torch.sqrt((x**2).mean(-1, keepdim=True) + options.eps)
    if not options.affine:
        return y
    return y * (1.0 + weights["weight"]) if options.unit_offset else y * weights["weight"]


def none(options: Any, weights: Mapping[str, Tensor], x: Tensor) -> Tensor:
    """x"""
    return x


FORMULAS = {"layer_norm": layer_norm, "rms_norm": rms_norm, "none": none}
