"""Packed batches: several rows of a corpus in one row of a batch, as documents that do not see each other.

Rows come in a random order. Each goes to the first of the batch's rows that has room for it on every side (first fit). Rows
that fit nowhere wait for the next batch; a batch ends when `WAITING` times its rows wait. So an epoch holds every row once, and
its batches depend only on the lengths, the seed and the number of the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .batches import Epoch, Numbers
from .corpus import NO_LABEL
from .tasks import Batch, Task
from .text_frame import PAD

WAITING = 2


class Bins:
    """The rows of one batch and the room that they have: `width` tokens on each of their sides, the inputs."""

    def __init__(self, rows: int, width: int, sides: int) -> None:
        self.room = np.full((rows, sides), width, np.int64)

    def place(self, lengths: npt.NDArray[np.int64]) -> int | None:
        """The row that takes one with these lengths, by side; None if it fits nowhere."""
        fits = np.flatnonzero((self.room >= lengths).all(1))
        if not len(fits):
            return None
        row = int(fits[0])
        self.room[row] -= lengths
        return row


@dataclass(frozen=True)
class Packing:
    """Packed batches of a corpus whose rows have these `lengths` (N,) by column: at most `rows` rows of `width` tokens."""

    lengths: Mapping[str, npt.NDArray[np.int32]]
    rows: int
    width: int

    @classmethod
    def of(cls, lengths: Mapping[str, npt.NDArray[np.int32]], tokens: int, max_length: int) -> Packing:
        """Rows of `max_length` tokens, as many as have `tokens` tokens on a side; a row of the corpus fits in any case."""
        width = max(min(max_length, tokens), *(int(column.max()) for column in lengths.values()))
        return cls(lengths, max(1, tokens // width), width)

    def epoch(self, seed: int, number: int, rows_of_epoch: Numbers | None = None) -> Epoch:
        """Epoch `number`. All rows are read once unless `rows_of_epoch` says which, perhaps several times."""
        generator = np.random.Generator(np.random.PCG64([seed, number]))
        sides = self._sides(slice(None))
        waiting = generator.permutation(np.arange(len(sides)) if rows_of_epoch is None else rows_of_epoch).tolist()
        batches: list[Numbers] = []
        while waiting:
            bins, placed, left, following = self._bins(), list[int](), list[int](), iter(waiting)
            while len(left) < WAITING * self.rows and (row := next(following, None)) is not None:
                (left if bins.place(sides[row]) is None else placed).append(row)
            batches.append(np.array(placed))
            waiting = [*left, *following]
        tokens = sum(int(sides[batch].sum()) for batch in batches)
        positions = len(batches) * self.rows * self.width * sides.shape[1]
        return Epoch([batches[index] for index in generator.permutation(len(batches))], max(0.0, 1 - tokens / positions))

    def packed(self, batch: Batch, rows: Sequence[int], task: Task, whole: bool) -> Batch:
        """A batch of some rows of the corpus, in their order in the epoch, as a packed one; `whole`: of full shape."""
        bins, members = self._bins(), [list[int]() for _ in range(self.rows)]
        for at, lengths in enumerate(self._sides(list(rows))):
            place = bins.place(lengths)
            assert place is not None, "the rows of a batch fit into it"
            members[place].append(at)
        members = members if whole else [row for row in members if row]
        width = self.width if whole else 0

        def joined(tensor: Tensor, counts: Tensor, fill: int) -> Tensor:
            """Rows (B, L) with `counts` (B,) numbers each, one after the other in the rows of their bins."""
            lines = [torch.cat([tensor[at, : counts[at]] for at in row] or [tensor[0, :0]]) for row in members]
            filled = tensor.new_full((len(lines), max(width, *(len(line) for line in lines))), fill)
            for line, target in zip(lines, filled, strict=True):
                target[: len(line)] = line
            return filled

        numbers = torch.zeros(len(batch.labels), dtype=torch.int64, device="cpu")
        for row in members:
            numbers[row] = torch.arange(len(row), device="cpu")
        inputs, lengths_by_name, documents, segments = {}, {}, {}, {}
        for name, ids in batch.inputs.items():
            counts = batch.lengths[name]
            inputs[name] = joined(ids, counts, PAD)
            lengths_by_name[name] = torch.stack([counts[row].sum() for row in members])
            documents[name] = joined(numbers[:, None].expand_as(ids), counts, len(numbers))
            if name in batch.segments:
                segments[name] = joined(batch.segments[name], counts, 0)
        labels = joined(batch.labels, batch.lengths[task.roles.target], NO_LABEL)
        packed = replace(batch, inputs=inputs, lengths=lengths_by_name, labels=labels, segments=segments, documents=documents)
        return packed if batch.links is None else replace(packed, links=_moved(batch.links, batch, members, task))

    def _bins(self) -> Bins:
        return Bins(self.rows, self.width, len(self.lengths))

    def _sides(self, rows: slice | list[int]) -> npt.NDArray[np.int64]:
        """(n, sides) the lengths of some rows."""
        return np.stack([column[rows] for column in self.lengths.values()], 1).astype(np.int64)


def _moved(links: Tensor, batch: Batch, members: Sequence[Sequence[int]], task: Task) -> Tensor:
    """Links (N, 3) of rows of a batch, at the places of their tokens in the rows that hold them, `members`."""
    place = torch.zeros(len(batch.labels), 3, dtype=torch.int64, device="cpu")  # row, first target token, first source token
    for line, row in enumerate(members):
        place[row, 0] = line
        for side, column in ((1, "target"), (2, "source")):
            counts = batch.lengths[task.roles.of(column)][row]
            place[row, side] = counts.cumsum(0) - counts
    return torch.cat([place[links[:, 0], :1], links[:, 1:] + place[links[:, 0], 1:]], 1)
