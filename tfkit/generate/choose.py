"""The n best of many scores, ties broken by the lower index.

`torch.topk` leaves open which of equal scores it takes and in what order. Equal scores are rare in float32 and common in
bfloat16, so they are looked for, and only where one straddles the n-th place is everything sorted.
"""

from __future__ import annotations

import torch
from torch import Tensor


def best(scores: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The `count` largest of scores (S, C) with their indices, each (S, count), largest first, the lower index first among
    equals. Fewer than `count` scores are filled up with -inf at index 0."""
    there = scores.shape[1]
    if there > count:
        values, indices = scores.topk(count + 1, 1)
        last, beyond = values[:, count - 1], values[:, count]
        if bool(((last == beyond) & (beyond > -torch.inf)).any()):
            values, indices = scores.sort(dim=1, descending=True, stable=True)
        values, indices = values[:, :count], indices[:, :count]
    else:
        values, indices = scores.sort(dim=1, descending=True, stable=True)
        values = torch.nn.functional.pad(values, (0, count - there), value=-torch.inf)
        indices = torch.nn.functional.pad(indices, (0, count - there))
    indices, order = indices.sort(1)
    values, again = values.gather(1, order).sort(dim=1, descending=True, stable=True)
    return values, indices.gather(1, again)
