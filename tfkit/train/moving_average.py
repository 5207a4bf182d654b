"""The exponential moving average of the weights. It often translates better than the weights themselves.

a_n = d_n a_{n-1} + (1 - d_n) w_n        d_n = min(decay, (1 + n) / (10 + n)): a small decay removes the first weights soon
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn


# torch.optim.swa_utils.AveragedModel would need `avg_fn` for this decay; its first update copies the weights (d_1 = 0 instead
# of 2/11), and it deep-copies the module, which FSDP2 refuses.
class MovingAverage:
    """The averages of all parameters by name; `step` counts the updates."""

    def __init__(self, model: nn.Module, decay: float) -> None:
        self.decay = decay
        self.step = 0
        self.values: dict[str, Tensor] = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: nn.Module) -> None:
        """Include the weights after a step."""
        self.step += 1
        decay = min(self.decay, (1 + self.step) / (10 + self.step))
        weights = [parameter.detach() for parameter in model.parameters()]
        torch._foreach_lerp_(list(self.values.values()), weights, 1 - decay)

    @contextmanager
    def used_by(self, model: nn.Module) -> Iterator[None]:
        """A context in which the model has the averages as its weights."""
        own = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
        self._assign(model, self.values)
        try:
            yield
        finally:
            self._assign(model, own)

    @torch.no_grad()
    def _assign(self, model: nn.Module, values: dict[str, Tensor]) -> None:
        for name, parameter in model.named_parameters():
            parameter.copy_(values[name])
