"""The equation of the score in plain torch, which it is compared with. It shares no code with the module."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tfkit.plugin import NoOptions


def bounded(options: NoOptions, weights: Mapping[str, Tensor], query: Tensor, key: Tensor) -> Tensor:
    """q . tanh(W k): query (..., Q, D) and key (..., K, key_dim) to (..., Q, K)."""
    return query @ torch.tanh(key @ weights["weight"].mT).mT
