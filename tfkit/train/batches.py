"""The batches of a run. A batch and its random seed depend only on the seed of the recipe and on the batch's position in the
data. A step is therefore the same in any process, and in a run that was interrupted.
"""

from __future__ import annotations

import numpy as np
import torch

from ..data import Batch, BatchShapes, Data, Epoch, ImageTask, Task, epoch_of
from ..recipe import Recipe


class TrainingBatches:
    """The batches of every epoch. With `compile: true` they have few shapes (`BatchShapes`)."""

    def __init__(self, recipe: Recipe, data: Data, task: Task | ImageTask, device: torch.device) -> None:
        self.recipe, self.data, self.task, self.device = recipe, data, task, device
        self.shapes = BatchShapes(data.train.lengths, recipe.batch_limit) if recipe.compile else None
        self._epoch: tuple[int, Epoch] | None = None

    @property
    def rows(self) -> int:
        """The number of rows of an epoch."""
        return len(self.data.train)

    @property
    def tokens(self) -> int:
        """The most tokens and labels of an epoch: those of all columns, and two labels of each row."""
        return sum(int(lengths.sum(dtype=np.int64)) for lengths in self.data.train.lengths.values()) + 2 * self.rows

    def epoch(self, number: int) -> Epoch:
        """The batches of an epoch, counted from 1, as row numbers."""
        if self._epoch is None or self._epoch[0] != number:
            seed, tokens = self.recipe.seed, self.recipe.batch_limit
            lengths = self.data.train.lengths
            epoch = self.shapes.epoch(seed, number) if self.shapes else epoch_of(lengths, tokens, seed, number)
            self._epoch = number, epoch
        return self._epoch[1]

    def count(self, epoch: int) -> int:
        """The number of batches of an epoch."""
        return len(self.epoch(epoch).batches)

    def batch(self, epoch: int, number: int) -> Batch:
        """Batch `number` of an epoch, counted from 0."""
        draw = np.random.Generator(np.random.PCG64([self.recipe.seed, epoch, number]))
        rows = self.epoch(epoch).batches[number].tolist()
        batch = self.task.batch(self.data.train, rows, draw, epoch)
        return (self.shapes.padded(batch, rows, self.task) if self.shapes else batch).to(self.device)

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
