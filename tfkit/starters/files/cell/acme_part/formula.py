"""The equation of the cell in plain torch, which it is compared with. It shares no code with the module."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from tfkit.plugin import NoOptions


def minimal(
    options: NoOptions, weights: Mapping[str, Tensor], inputs: Sequence[Tensor], state: tuple[Tensor, ...]
) -> tuple[Tensor, ...]:
    """Zhou et al. 2016, equation 7: inputs x_i (B, inputs[i]) and the state (h (B, N),) to the next state."""
    [h] = state
    of_inputs = [x @ weights[f"weights_ih.{i}"].mT for i, x in enumerate(inputs)]
    of_forget, of_new = (torch.stack(of_inputs).sum(0) + weights["bias"]).chunk(2, -1)
    forget = torch.sigmoid(of_forget + h @ weights["forget.weight"].mT)
    new = torch.tanh(of_new + (forget * h) @ weights["new.weight"].mT)
    return ((1 - forget) * h + forget * new,)
