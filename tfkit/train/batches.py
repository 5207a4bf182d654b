"""The batches of a run. A batch and its random seed depend only on the seed of the recipe and on the batch's position in the
data. A step is therefore the same in any process, and in a run that was interrupted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from ..data import NO_LABEL, Batch, BatchShapes, Data, Epoch, ImageTask, Mixture, Packing, Task, epoch_of, shares_of
from ..data.corpus import TAGS
from ..recipe import Recipe

COUNTED_ROWS = 200_000
"""The most rows of earlier epochs that are drawn again to count what a run has used, if every epoch has other batches."""


@dataclass(frozen=True)
class Used:
    """What a run has used at a position in its data: steps, source tokens and target tokens, each from the least that is
    possible to the most. They are equal where the data say how many there are."""

    steps: tuple[int, int] = (0, 0)
    source_tokens: tuple[int, int] = (0, 0)
    target_tokens: tuple[int, int] = (0, 0)

    def __add__(self, other: Used) -> Used:
        return Used(*((one[0] + two[0], one[1] + two[1]) for one, two in zip(self._ranges, other._ranges, strict=True)))

    def __mul__(self, times: int) -> Used:
        return Used(*((least * times, most * times) for least, most in self._ranges))

    @property
    def _ranges(self) -> Sequence[tuple[int, int]]:
        return self.steps, self.source_tokens, self.target_tokens


class TrainingBatches:
    """The batches of every epoch. With `compile` or `cuda_graphs` they have few shapes (`BatchShapes`), with
    `batching.pack` too one."""

    def __init__(self, recipe: Recipe, data: Data, task: Task | ImageTask, device: torch.device) -> None:
        self.recipe, self.data, self.task, self.device = recipe, data, task, device
        lengths, batching = data.train.lengths, recipe.batching
        self.packing = Packing.of(lengths, batching.tokens, batching.max_length) if batching.pack else None
        self.shapes = BatchShapes(lengths, recipe.batch_limit) if recipe.few_shapes and not batching.pack else None
        sizes = {name: counts.kept for name, counts in data.parts.get("train", {}).items()}
        shares = shares_of(recipe, sizes) if sizes else None
        self.mixture = None if shares is None else Mixture.of(list(sizes.values()), shares)
        self._epoch: tuple[int, Epoch] | None = None

    @property
    def shape_count(self) -> int:
        """The number of shapes of batches, 0 if it is not limited."""
        return len(self.shapes) if self.shapes is not None else int(self.packing is not None and self.recipe.few_shapes)

    @property
    def rows(self) -> int:
        """The number of rows of an epoch."""
        return len(self.data.train) if self.mixture is None else sum(self.mixture.counts)

    @property
    def largest(self) -> int:
        """More tokens or labels than a batch can have."""
        lengths, sampled = self.data.train.lengths.values(), not isinstance(self.task, ImageTask) and self.task.samplers
        longest = max(self.recipe.batch_limit, *(int(column.max()) for column in lengths))
        return 2 * longest * (self.recipe.batching.max_length if sampled else 1)

    def epoch(self, number: int) -> Epoch:
        """The batches of an epoch, counted from 1, as row numbers."""
        if self._epoch is None or self._epoch[0] != number:
            seed, tokens = self.recipe.seed, self.recipe.batch_limit
            lengths = self.data.train.lengths
            rows = None if self.mixture is None else self.mixture.rows(seed, number)
            grouping = self.packing or self.shapes
            epoch = grouping.epoch(seed, number, rows) if grouping else epoch_of(lengths, tokens, seed, number, rows)
            self._epoch = number, epoch
        return self._epoch[1]

    def count(self, epoch: int) -> int:
        """The number of batches of an epoch."""
        return len(self.epoch(epoch).batches)

    def used(self, epoch: int, batch: int) -> Used:
        """What the steps before a batch of an epoch have used."""
        whole, steps_of = epoch - 1, self.recipe.batching.accumulate
        part = self._of_rows(np.concatenate(self.epoch(epoch).batches[:batch])) if batch else Used()
        part += Used(steps=(-(-batch // steps_of),) * 2)
        if self.mixture is None and self.packing is None:  # the batches depend on the lengths of the rows alone
            steps = -(-self.count(epoch) // steps_of)
            return part + (self._of_rows(slice(None)) + Used(steps=(steps, steps))) * whole if whole else part
        if whole * self.rows <= COUNTED_ROWS:
            for number in range(1, epoch):
                batches = self.epoch(number).batches
                part += self._of_rows(np.concatenate(batches)) + Used(steps=(-(-len(batches) // steps_of),) * 2)
            return part
        steps = -(-self.rows // steps_of)
        if self.mixture is None:
            return part + (self._of_rows(slice(None)) + Used(steps=(1, steps))) * whole
        rows = [self._of_rows(np.array([at]), labelled=False) for at in self._extreme_rows()]
        ranges = [[getattr(row, name) for row in rows] for name in ("source_tokens", "target_tokens")]
        of_row = [(min(least for least, _ in values), max(most for _, most in values)) for values in ranges]
        return part + (Used((0, 0), *of_row) * self.rows + Used(steps=(1, steps))) * whole

    def _extreme_rows(self) -> set[int]:
        """The shortest and the longest row of each column."""
        lengths = self.data.train.lengths.values()
        return {int(choose(column)) for column in lengths for choose in (np.argmin, np.argmax)}

    def _of_rows(self, rows: Any, labelled: bool = True) -> Used:
        """The source and the target tokens of some rows, as those of their batches. `labelled`: count the labels of tokens."""
        corpus, task = self.data.train, self.task
        count = len(next(iter(corpus.lengths.values()))[rows])
        if isinstance(task, ImageTask):
            return Used(target_tokens=(count, count))
        target = self._side("target", rows)
        if task.kind == "parallel":
            return Used((0, 0), self._side("source", rows), target)
        if task.kind in ("language", "texts"):  # the first token of a row is no label
            return Used(target_tokens=(max(target[0] - count, 0), target[1] - count))
        if task.masking is not None or (task.kind == "tagged" and not labelled):  # each batch draws the tokens that it hides
            return Used((0, 0), target, (0, target[1]))
        if task.kind == "tagged":
            numbers = np.arange(len(corpus))[rows].tolist()
            labels = sum(int((row != NO_LABEL).sum()) for row in corpus.rows(TAGS, numbers))
        else:
            labels = count * (2 if task.kind == "spans" else 1)
        return Used((0, 0), target, (labels, labels))

    def _side(self, column: str, rows: Any) -> tuple[int, int]:
        """The tokens of some rows in a column. A row of which other pieces are drawn has at least one."""
        lengths: npt.NDArray[np.int64] = self.data.train.lengths[column][rows].astype(np.int64)
        if not isinstance(self.task, ImageTask) and column in self.task.samplers:
            return len(lengths), int(np.maximum(lengths, self.recipe.batching.max_length).sum())
        return (int(lengths.sum()),) * 2

    def tokens_by_column(self, epoch: int) -> dict[str, int]:
        """The tokens of an epoch, by column."""
        rows = np.concatenate(self.epoch(epoch).batches)
        return {name: int(lengths[rows].sum(dtype=np.int64)) for name, lengths in self.data.train.lengths.items()}

    def batch(self, epoch: int, number: int) -> Batch:
        """Batch `number` of an epoch, counted from 0."""
        draw = np.random.Generator(np.random.PCG64([self.recipe.seed, epoch, number]))
        rows = self.epoch(epoch).batches[number].tolist()
        batch = self.task.batch(self.data.train, rows, draw, epoch)
        if self.packing is not None:
            assert isinstance(self.task, Task), "images are not packed"
            batch = self.packing.packed(batch, rows, self.task, self.recipe.few_shapes)
        elif self.shapes is not None:
            batch = self.shapes.padded(batch, rows, self.task)
        return batch.to(self.device)

    def seed(self, epoch: int, number: int) -> int:
        """The seed of dropout in the forward pass of a batch."""
        return int(np.random.SeedSequence([self.recipe.seed, epoch, number]).generate_state(1, np.uint64)[0])

    def longest_rows(self) -> list[Batch]:
        """A batch of one row for the longest row of each column, of the training and the validation data."""
        corpora = [corpus for corpus in (self.data.train, self.data.validation) if corpus is not None]
        return [
            self.task.batch(corpus, [row], np.random.default_rng(0)).to(self.device)
            for corpus in corpora
            for row in {int(column.argmax()) for column in corpus.lengths.values()}
        ]
