"""The plain equation that `tfkit conformance` and `tfkit verify` check the cell against."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tfkit.plugin import NoOptions


def minimal(
    options: NoOptions, weights: Mapping[str, Tensor], inputs: Sequence[Tensor], state: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """h' = (1 - f) h + f n, Zhou et al. 2016, equation 7 (https://arxiv.org/abs/1603.09420). Inputs (B, W), state (B, N)."""
    [h] = state
    of_inputs = weights["bias"] + sum(x @ weights[f"weights_ih.{i}"].mT for i, x in enumerate(inputs))
    x_f, x_n = of_inputs.chunk(2, -1)
    f = 1 / (1 + torch.exp(-(x_f + h @ weights["forget.weight"].mT)))
    n = torch.tanh(x_n + (f * h) @ weights["new.weight"].mT)
    return ((1 - f) * h + f * n,)
