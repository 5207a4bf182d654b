"""Results that are NaN are refused: a label, a tag or an answer chosen by them would look like any other."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..errors import Diagnostic, InputError

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
