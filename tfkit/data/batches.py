"""Batches by tokens: rows of nearly equal lengths together, so that little of a batch is padding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Epoch:
    """The batches of one pass over a corpus, as row numbers, in the order in which they are met. `padding` is the share of
    all positions that are padding."""

    batches: list[Numbers]
    padding: float


def epoch_of(lengths: Mapping[str, npt.NDArray[np.int32]], tokens: int, seed: int, number: int) -> Epoch:
    """Epoch `number` of a corpus whose rows have these lengths (N,) by column.

    Rows are sorted by the last column's length, then by the others', up and down in turn, ties in random order; a batch is cut
    where its longest row times its rows would be more than `tokens`; batches are shuffled. The same seed and number give the
    same epoch, whatever came before, so that training can go on in the middle of one.
    """
    generator = np.random.Generator(np.random.PCG64([seed, number]))
    columns = list(lengths.values())
    *others, last = columns
    # Up and down in turn, so that a batch which reaches into the next length of the last column finds the others near.
    turned: list[npt.NDArray[Any]] = [np.where(last % 2, column, -column) for column in others]
    order = np.lexsort([generator.random(len(last)), *turned, last])
    widest = np.maximum.reduce(columns)[order]
    cuts, start, most = [0], 0, 0
    for at, width in enumerate(widest.tolist()):
        most = max(most, width)
        if at > start and most * (at - start + 1) > tokens:
            cuts.append(at)
            start, most = at, width
    batches = np.split(order, cuts[1:])
    real = sum(int(column.sum()) for column in columns)
    whole = sum(len(batch) * sum(int(column[batch].max()) for column in columns) for batch in batches)
    return Epoch([batches[index] for index in generator.permutation(len(batches))], 1 - real / whole)
