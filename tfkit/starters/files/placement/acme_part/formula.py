"""The plain equation that `tfkit conformance` and `tfkit verify` check the placement against."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from tfkit.plugin import NoOptions


def wiring(options: NoOptions, layer: Any, x: Tensor) -> Tensor:
    """x = x + scale norm(f(x)), for each sub-layer f in turn, Liu et al. 2022 (https://arxiv.org/abs/2111.09883)."""
    for name, f in layer.branches.items():
        x = x + layer.scales[name] * layer.norms[name](f(x))
    return x
