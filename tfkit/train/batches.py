"""The batches of a run. A batch and its random seed depend only on the seed of the recipe and on the batch's position in the
data. A step is therefore the same in any process, and in a run that was interrupted.
"""

from __future__ import annotations

import numpy as np
import torch

from ..data import Batch, BatchShapes, Data, Epoch, ImageTask, Mixture, Packing, Task, epoch_of, shares_of
from ..recipe import Recipe


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
    def tokens(self) -> int:
        """The most tokens and labels of an epoch: those of all columns, and two labels of each row."""
        if not isinstance(self.task, ImageTask) and self.task.samplers:
            return self.rows * 2 * (2 + self.recipe.batching.max_length)
        if self.mixture is not None:
            return self.rows * (2 + sum(int(lengths.max()) for lengths in self.data.train.lengths.values()))
        return sum(int(lengths.sum(dtype=np.int64)) for lengths in self.data.train.lengths.values()) + 2 * self.rows

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
