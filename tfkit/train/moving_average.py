"""The exponential moving average of the weights, which often translates better than the weights themselves.

a_n = d_n a_{n-1} + (1 - d_n) w_n        d_n = min(decay, (1 + n) / (10 + n)), so that the first steps are soon forgotten
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


class Average:
    """Averages of all parameters by name. `step` is the number of updates so far."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.step = 0
        self.values: dict[str, Tensor] = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        self.step += 1
        decay = min(self.decay, (1 + self.step) / (10 + self.step))
        weights = [parameter.detach() for parameter in model.parameters()]
        torch._foreach_lerp_(list(self.values.values()), weights, 1 - decay)

    @contextmanager
    def used_by(self, model: nn.Module) -> Iterator[None]:
        """The model has the averages for its weights, and its own ones back afterwards."""
        kept = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        self._put(model, self.values)
        try:
            yield
        finally:
            self._put(model, kept)

    @torch.no_grad()
    def _put(self, model: nn.Module, values: dict[str, Tensor]) -> None:
        for name, parameter in model.named_parameters():
            parameter.copy_(values[name])
