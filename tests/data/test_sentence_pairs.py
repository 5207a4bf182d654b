"""Pairs of pieces of text: where their tokens come from, how often the second follows the first, how long they are."""

import math

import numpy as np
import pytest

from tfkit.data import sentence_pairs as module
from tfkit.data.sentence_pairs import sentence_pairs
from tfkit.data.tokeniser import PAIR
from tfkit.recipe import recipe_of

RECIPE = "tfkit: 1\nname: r\nmodel: m.yaml\ndata: {kind: masked_pairs, text: t}\nstopping: {max_steps: 1}\n"


class Numbers:
    """A tokeniser of texts of numbers."""

    pair_frame = PAIR

    def encode(self, texts):
        return [[int(word) for word in text.split()] for text in texts]


def documents(count, seed=0):
    """Documents whose tokens are the numbers from 10 on, each used once."""
    draw, at, made = np.random.default_rng(seed), 10, []
    for _ in range(count):
        made.append([])
        for _ in range(draw.integers(5, 30)):
            size = int(draw.integers(1, 9))
            made[-1].append(list(range(at, at + size)))
            at += size
    return made


def rows_of(made, max_length=32, seed=0):
    lines = [line for sentences in made for line in [*(" ".join(map(str, ids)) for ids in sentences), ""]]
    recipe = recipe_of(RECIPE, "r.yaml", [f"batching.max_length={max_length}", f"seed={seed}"])
    return list(sentence_pairs(((number, (line,)) for number, line in enumerate(lines)), {"target": Numbers()}, recipe))


def pieces(row):
    (ids,) = row.ids
    assert (ids[0], ids[-1], ids.count(2)) == (1, 2, 2)
    end = ids.index(2)
    return ids[1:end], ids[end + 1 : -1]


@pytest.mark.parametrize("block", [10, 10**6])
def test_pieces_are_running_text_of_one_or_two_documents(monkeypatch, block):
    monkeypatch.setattr(module, "BLOCK", block)
    made = documents(40)
    document_of = {token: number for number, sentences in enumerate(made) for ids in sentences for token in ids}
    firsts = set()
    for row in (rows := rows_of(made)):
        first, second = pieces(row)
        assert first == list(range(first[0], first[-1] + 1))
        assert second == list(range(second[0], second[-1] + 1))
        one, other = (document_of[piece[0]] for piece in (first, second))
        assert document_of[first[-1]] == one
        assert document_of[second[-1]] == other
        assert (one != other) is row.random
        assert row.random or second[0] == first[-1] + 1
        assert len(row.ids[0]) <= 32
        firsts |= {*first, *(() if row.random else second)}
    assert len(firsts) > 0.85 * len(document_of)  # the rest was cut off
    assert sum(len(row.ids[0]) == 32 for row in rows) > len(rows) / 2


def test_half_of_the_second_pieces_follow(monkeypatch):
    """Within four standard deviations of the binomial distribution. A row that starts at the last sentence of a document has no
    sentence to follow and does not count."""
    monkeypatch.setattr(module, "SHORT", 0.0)
    made = documents(120)
    last = {sentences[-1][0] for sentences in made}
    rows = [row for seed in range(8) for row in rows_of(made, seed=seed) if pieces(row)[0][0] not in last]
    random = sum(row.random for row in rows)
    assert len(rows) > 2000
    assert abs(random - len(rows) / 2) < 4 * math.sqrt(len(rows)) / 2


def test_pairs_depend_on_the_seed_only():
    made = documents(10)
    assert rows_of(made) == rows_of(made)
    assert rows_of(made) != rows_of(made, seed=1)


@pytest.mark.parametrize("max_length", [5, 6, 9])
def test_short_rows(max_length):
    for row in rows_of(documents(5), max_length):
        assert min(map(len, pieces(row))) >= 1
        assert len(row.ids[0]) <= max_length
