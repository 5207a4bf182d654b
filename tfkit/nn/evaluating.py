"""A model as it is used, not trained: without dropout, and with results that are numbers."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from ..errors import Diagnostic, InputError


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


SHOWN = 60
"""Characters of a name in a message."""


def check_results(results: Tensor, names: Sequence[str]) -> None:
    """Check that no result is NaN. The softmax of logits is NaN where one of them is NaN or +inf, or all are -inf.

    Args:
        results: (N, ...), for instance probabilities.
        names: what each of the N was computed for.

    Raises:
        InputError: a result is NaN; it is named.
    """
    wrong = results.isnan()
    if bool(wrong.any()):
        name = names[int(wrong.reshape(len(wrong), -1).any(1).nonzero()[0])]
        short_name = name if len(name) <= SHOWN else f"{name[: SHOWN - 3]}..."
        message = f"what the model computes for `{short_name}` is NaN or infinite"
        raise InputError(Diagnostic("TFK085", message, "the weights of the model, or its inputs, hold NaN or infinities"))
