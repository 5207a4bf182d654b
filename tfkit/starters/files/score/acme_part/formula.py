"""The plain equation that `tfkit conformance` and `tfkit verify` check the score against."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from tfkit.plugin import NoOptions


def bounded(options: NoOptions, weights: Mapping[str, Tensor], query: Tensor, key: Tensor) -> Tensor:
    """q . tanh(W k). Query (B,H,Q,D) and key (B,H,K,E), a key head for each query head, to (B,H,Q,K)."""
    return query @ torch.tanh(key @ weights["weight"].mT).mT
