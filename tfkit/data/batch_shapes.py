"""Batches of few shapes, for torch.compile, which generates code for each shape.

Rows are grouped by the length of their longer side. All batches of a group have one shape: as many rows as fit into the token
limit, and every column as long as its longest row in the group. Shorter rows are padded, and rows without labels complete the
last batch of a group.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from .batches import Epoch, Numbers
from .corpus import NO_LABEL
from .image_tasks import ImageTask
from .tasks import Batch, Task
from .text_frame import PAD

MAX_SHAPES = 8
"""The largest number of shapes of a corpus. More shapes mean less padding and longer compilation."""


@dataclass(frozen=True)
class Shape:
    """Batches of `rows` rows whose longer side has at most `limit` tokens; `lengths` by column."""

    limit: int
    rows: int
    lengths: Mapping[str, int]


class BatchShapes:
    """The shapes of a corpus whose rows have these `lengths` (N,) by column, with at most `tokens` in the longer side."""

    def __init__(self, lengths: Mapping[str, npt.NDArray[np.int32]], tokens: int) -> None:
        self.widest = np.maximum.reduce(list(lengths.values()))
        self._lengths = np.sum([column.astype(np.int64) for column in lengths.values()], axis=0)
        self.shapes: list[Shape] = []
        before = 0
        for limit in _limits(self.widest, tokens):
            inside = (self.widest > before) & (self.widest <= limit)
            longest = {name: int(column[inside].max()) for name, column in lengths.items()}
            self.shapes.append(Shape(limit, int(_rows(inside.sum(), limit, tokens)), longest))
            before = limit

    def __len__(self) -> int:
        return len(self.shapes)

    def of(self, rows: npt.ArrayLike) -> Shape:
        """The shape of the batch of some rows."""
        limits = [shape.limit for shape in self.shapes]
        return self.shapes[int(np.searchsorted(limits, int(self.widest[rows].max())))]

    def epoch(self, seed: int, number: int, rows_of_epoch: Numbers | None = None) -> Epoch:
        """Epoch `number`: shuffles the rows of each group, splits them into batches, and shuffles the batches. The result
        depends on the arguments only. All rows are read once unless `rows_of_epoch` says which, perhaps several times."""
        generator = np.random.Generator(np.random.PCG64([seed, number]))
        batches: list[Numbers] = []
        all_rows = np.arange(len(self.widest)) if rows_of_epoch is None else rows_of_epoch
        groups = np.searchsorted([shape.limit for shape in self.shapes], self.widest[all_rows])
        positions = 0
        for group, shape in enumerate(self.shapes):
            rows = generator.permutation(all_rows[groups == group])
            split = [rows[first : first + shape.rows] for first in range(0, len(rows), shape.rows)]
            positions += len(split) * shape.rows * sum(shape.lengths.values())
            batches += split
        tokens = int(self._lengths[all_rows].sum())
        return Epoch([batches[index] for index in generator.permutation(len(batches))], 1 - tokens / positions)

    def padded(self, batch: Batch, rows: npt.ArrayLike, task: Task | ImageTask) -> Batch:
        """A batch of some rows, padded to its shape. Added rows are copies of the first row without labels, so that they are
        valid inputs of any model."""
        shape = self.of(rows)
        labels_only = int(task.kind in ("language", "texts"))  # the last token of a row is a label and no input
        widths = {task.roles.of(column): length - labels_only for column, length in shape.lengths.items()}
        inputs = {
            name: _fill(tensor, shape.rows, widths[name], PAD) if tensor.dim() == 2 else _repeat(tensor, shape.rows)
            for name, tensor in batch.inputs.items()
        }
        lengths = {name: _fill(counts[:, None], shape.rows, 1, 0)[:, 0] for name, counts in batch.lengths.items()}
        width = 2 if task.kind == "spans" else widths[task.roles.target] if batch.labels.dim() == 2 else 1
        labels = _fill(batch.labels.view(len(batch.labels), -1), shape.rows, width, NO_LABEL)
        labels[len(batch.labels) :] = NO_LABEL
        segments = {name: _fill(ids, shape.rows, widths[name], 0) for name, ids in batch.segments.items()}
        labels = labels if batch.labels.dim() == 2 else labels[:, 0]
        others = {name: _fill(other[:, None], shape.rows, 1, NO_LABEL)[:, 0] for name, other in batch.other_labels.items()}
        for other in others.values():
            other[len(batch.labels) :] = NO_LABEL
        return replace(batch, inputs=inputs, lengths=lengths, labels=labels, segments=segments, other_labels=others)


def _fill(values: Tensor, rows: int, width: int, by: int) -> Tensor:
    """Values (B, L) as (rows, width), with a value `by` on the right and copies of the first row below."""
    filled = values.new_full((rows, width), by)
    filled[: len(values), : values.shape[1]] = values
    filled[len(values) :] = filled[0]
    return filled


def _repeat(images: Tensor, rows: int) -> Tensor:
    """Images (B, C, H, W) as (rows, C, H, W), with copies of the first below."""
    return torch.cat([images, images[:1].expand(rows - len(images), -1, -1, -1)])


def _rows(count: Any, limit: int, tokens: int) -> Any:
    """The rows per batch for a group of `count` rows (an integer or an array): the fewest batches, evenly filled."""
    batches = -(-count // max(1, tokens // limit))
    return -(-count // batches)


def _limits(widest: npt.NDArray[np.int32], tokens: int) -> list[int]:
    """The largest length of each of at most `MAX_SHAPES` groups with the least padding in an epoch. Dynamic programming over
    the sorted lengths finds them."""
    widths, counts = np.unique(widest, return_counts=True)
    below = np.concatenate([[0], np.cumsum(counts)])
    count = len(widths)
    # cost[j]: positions in the best groups of the first j widths; start[j]: where the last of these groups starts.
    cost = np.concatenate([[0.0], np.full(count, np.inf)])
    starts: list[npt.NDArray[np.int64]] = []
    for _ in range(min(MAX_SHAPES, count)):
        better = cost.copy()
        start: npt.NDArray[np.int64] = np.full(count + 1, -1)
        for end in range(1, count + 1):
            inside, limit = below[end] - below[:end], int(widths[end - 1])
            rows = _rows(inside, limit, tokens)
            whole = cost[:end] + -(-inside // rows) * rows * limit
            if (best := int(whole.argmin())) >= 0 and whole[best] < better[end]:
                better[end], start[end] = whole[best], best
        starts.append(start)
        cost = better
    limits, end = [], count
    for start in reversed(starts):
        if start[end] >= 0:
            limits.append(int(widths[end - 1]))
            end = int(start[end])
    return limits[::-1]
