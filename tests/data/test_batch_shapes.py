"""Batches of few shapes: every row once, all batches of a shape alike, and as little padding as so few can have."""

import itertools
import math

import numpy as np
import pytest
import torch

from forced import most_shapes
from tfkit.data import NO_LABEL, batch_shapes
from tfkit.data.batch_shapes import BatchShapes
from tfkit.data.masking import Masking
from tfkit.data.roles import Roles
from tfkit.data.tasks import Task

__all__ = ["most_shapes"]

MASKING = Masking("tokens", 0.3, np.zeros(0, np.bool_))


def lengths_of(count=500, seed=0):
    draw = np.random.default_rng(seed)
    source = np.clip(draw.normal(14, 6, count), 2, 40).astype(np.int32)
    return {"source": source, "target": np.clip(source + draw.integers(-3, 4, count), 2, 40).astype(np.int32)}


@pytest.mark.parametrize("tokens", [40, 130, 4096])
def test_every_row_once_and_batches_fit(tokens):
    lengths = lengths_of()
    made = BatchShapes(lengths, tokens)
    assert 1 <= len(made) <= batch_shapes.MAX_SHAPES
    epoch = made.epoch(3, 5)
    assert sorted(np.concatenate(epoch.batches).tolist()) == list(range(500))
    whole = 0
    for rows in epoch.batches:
        shape = made.of(rows)
        assert len(rows) <= shape.rows
        assert shape.rows * max(shape.lengths.values()) <= tokens
        assert all(int(lengths[name][rows].max()) <= shape.lengths[name] for name in lengths)
        whole += shape.rows * sum(shape.lengths.values())
    real = sum(int(column.sum()) for column in lengths.values())
    assert epoch.padding == pytest.approx(1 - real / whole)


def test_the_seed_and_the_number_decide():
    made = BatchShapes(lengths_of(), 200)
    one, again, other = made.epoch(1, 2), BatchShapes(lengths_of(), 200).epoch(1, 2), made.epoch(1, 3)
    assert [rows.tolist() for rows in one.batches] == [rows.tolist() for rows in again.batches]
    assert [rows.tolist() for rows in one.batches] != [rows.tolist() for rows in other.batches]


@pytest.mark.parametrize("most", [1, 2, 3, 4])
@pytest.mark.parametrize("seed", range(5))
def test_no_other_limits_pad_less(most, seed, most_shapes):
    most_shapes(most)
    draw = np.random.default_rng(seed)
    widest = draw.choice(np.arange(3, 10), draw.integers(5, 60)).astype(np.int32)
    tokens = int(draw.integers(9, 40))

    def positions(limits):
        before, total = 0, 0
        for limit in limits:
            count = int(((widest > before) & (widest <= limit)).sum())
            batches = math.ceil(count / (tokens // limit))
            total += batches * math.ceil(count / batches) * limit
            before = limit
        return total

    widths = sorted(set(widest.tolist()))
    inner = itertools.chain.from_iterable(itertools.combinations(widths[:-1], size) for size in range(most))
    every = ((*chosen, widths[-1]) for chosen in inner)
    found = [shape.limit for shape in BatchShapes({"target": widest}, tokens).shapes]
    assert positions(found) == min(map(positions, every))


def test_one_row_and_rows_longer_than_a_batch():
    assert [(shape.rows, shape.limit) for shape in BatchShapes({"target": np.array([5], np.int32)}, 3).shapes] == [(1, 5)]


class _Corpus:
    """Rows of ids, as a corpus hands them out."""

    def __init__(self, columns):
        self.columns = columns
        self.numbers = {"label": np.arange(len(columns["target"]))}

    def has(self, name):
        return name in self.columns

    def rows(self, name, numbers):
        return [self.columns[name][number] for number in numbers]


@pytest.mark.parametrize("kind", ["parallel", "language", "masked", "classification"])
def test_padding_to_a_shape_changes_no_loss(kind, most_shapes):
    most_shapes(1)
    columns = {"target": [np.arange(5, 5 + length, dtype=np.int32) for length in (7, 3, 5, 6, 4)]}
    if kind == "parallel":
        columns["source"] = [np.arange(9, 9 + length, dtype=np.int32) for length in (2, 8, 4, 4, 3)]
    lengths = {name: np.array([len(row) for row in rows], np.int32) for name, rows in columns.items()}
    task = Task(kind, Roles("read" if kind == "parallel" else None, "written", "logits"), 40, MASKING)
    made = BatchShapes(lengths, 40)
    numbers = [1, 2]
    batch = task.batch(_Corpus(columns), numbers, np.random.default_rng(0))
    full, shape = made.padded(batch, numbers, task), made.of(numbers)
    assert shape.rows > 2
    assert (full.source_tokens, full.target_tokens) == (batch.source_tokens, batch.target_tokens)
    for name, ids in batch.inputs.items():
        column = "source" if name == "read" else "target"
        assert full.inputs[name].shape == (shape.rows, shape.lengths[column] - (kind == "language"))
        assert torch.equal(full.inputs[name][:2, : ids.shape[1]], ids)
        assert not full.inputs[name][:2, ids.shape[1] :].any()
        assert torch.equal(full.lengths[name][:2], batch.lengths[name])
        assert (full.inputs[name][2:] == full.inputs[name][0]).all()
        assert (full.lengths[name][2:] == batch.lengths[name][0]).all()
    found = full.labels != NO_LABEL
    assert torch.equal(full.labels[found], batch.labels[batch.labels != NO_LABEL])
    assert not found[2:].any()
    assert full.labels.dim() == batch.labels.dim()
