"""A model as it is used, not trained."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import nn


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout and without gradients. The mode of the model is restored, after an error too."""
    training = model.training
    changes = any(module.training for module in model.modules())  # to set the mode of every module takes ten times as long
    if changes:
        model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        if changes:
            model.train(training)
