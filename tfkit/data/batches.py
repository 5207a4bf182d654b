"""Batches with a limit of tokens. Their rows have similar lengths, so that there is little padding."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Epoch:
    """One pass over a corpus: its `batches` in order, as row numbers, and the share of positions that are `padding`."""

    batches: list[Numbers]
    padding: float


def epoch_of(
    lengths: Mapping[str, npt.NDArray[np.int32]], tokens: int, seed: int, number: int, rows: Numbers | None = None
) -> Epoch:
    """An epoch of a corpus whose rows have these lengths, by column. It depends on the arguments only, so that training can
    resume within it.

    Rows are sorted by the length of the last column, then of the others (ascending and descending in turn), with random ties. A
    batch ends where its longest row times its number of rows would exceed `tokens`; a single row may exceed it. The batches are
    shuffled. `rows` may have some rows several times; by default it is all rows once.
    """
    generator = np.random.Generator(np.random.PCG64([seed, number]))
    columns = [column if rows is None else column[rows] for column in lengths.values()]
    *others, last = columns
    # Alternating directions: a batch that spans two lengths of the last column then has similar lengths in the others.
    alternating: list[npt.NDArray[Any]] = [np.where(last % 2, column, -column) for column in others]
    order = np.lexsort([generator.random(len(last)), *alternating, last])
    widest = np.maximum.reduce(columns)[order]
    cuts, start, longest = [0], 0, 0
    for at, width in enumerate(widest.tolist()):
        longest = max(longest, width)
        if at > start and longest * (at - start + 1) > tokens:
            cuts.append(at)
            start, longest = at, width
    batches = np.split(order, cuts[1:])
    tokens_without_padding = sum(int(column.sum()) for column in columns)
    positions = sum(len(batch) * sum(int(column[batch].max()) for column in columns) for batch in batches)
    if rows is not None:
        batches = [rows[batch] for batch in batches]
    return Epoch([batches[index] for index in generator.permutation(len(batches))], 1 - tokens_without_padding / positions)
