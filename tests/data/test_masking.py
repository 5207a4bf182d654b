"""Hidden tokens, words and spans: shares within four standard deviations of the binomial distribution."""

import math
from functools import cache

import numpy as np
import pytest

from tfkit.data.masking import LENGTHS, SHARES, Masking, masking_of
from tfkit.data.tokeniser import train_tokeniser
from tfkit.recipe import recipe_of

pytestmark = pytest.mark.xdist_group("masking")  # the rows are made once
SIZE, MASK = 100, 4
STARTS = np.arange(SIZE) % 2 == 0
"""Even ids start a word, odd ids continue it."""
ROWS = 4000


@cache
def rows(seed=0, pair=False):
    """Rows of words of one to three pieces, in one or two texts, and the word of every token (-1 for special tokens)."""
    draw = np.random.default_rng(seed)
    ids, words = np.zeros((ROWS, 40), np.int64), np.full((ROWS, 40), -1)
    lengths = np.zeros(ROWS, np.int64)
    for row in range(ROWS):
        made, word = [1], [-1]
        count = int(draw.integers(4, 11))
        for number in range(count):
            size = int(draw.integers(1, 4))
            made += [2 * int(draw.integers(3, 50)), *(2 * draw.integers(3, 49, size - 1) + 1).tolist()]
            word += [number] * size
            if pair and number == count // 2:
                made, word = [*made, 2], [*word, -1]
        made, word = [*made, 2], [*word, -1]
        ids[row, : len(made)], words[row, : len(made)], lengths[row] = made, word, len(made)
    return ids, words, lengths


def near(count, total, share):
    assert abs(count - total * share) < 4 * math.sqrt(total * share * (1 - share)), (count / total, share)


def word_units(words, flags):
    """For every word of the rows: whether all its tokens have the flag, and whether none has it."""
    for row, flagged in zip(words, flags, strict=True):
        for number in range(row.max() + 1):
            yield flagged[row == number]


@pytest.mark.parametrize("pair", [False, True])
@pytest.mark.parametrize("unit", ["tokens", "words", "spans"])
def test_shares(unit, pair):
    ids, words, lengths = rows(pair=pair)
    read, hidden = Masking(unit, 0.3, STARTS)(ids, lengths, SIZE, np.random.default_rng(1))
    assert not hidden[words < 0].any()
    assert hidden.any(1).all()
    assert (read == ids)[~hidden].all()
    masked, same = (read == MASK) & hidden, (read == ids) & hidden
    if unit != "spans":  # a span is drawn as a whole, see below
        near(masked.sum(), hidden.sum(), 0.8)
        near(same.sum(), hidden.sum(), 0.1 + 0.1 / 95)
    others = read[hidden & ~masked & ~same]
    assert others.min() == 5
    assert others.max() == SIZE - 1
    if unit == "tokens":
        near(hidden.sum(), (words >= 0).sum(), 0.3)
        return
    flags = list(word_units(words, hidden))
    assert all(each.all() or not each.any() for each in flags), "a word is hidden in part"
    if unit == "words":
        forced = sum(0.7 ** (row.max() + 1) for row in words)  # rows of which no word was drawn hide their first
        assert abs(sum(each.all() for each in flags) - 0.3 * len(flags) - forced) < 4 * math.sqrt(0.21 * len(flags))


def test_spans_are_adjacent_words_with_one_draw():
    ids, words, lengths = rows(pair=True)
    read, hidden = Masking("spans", 0.3, STARTS)(ids, lengths, SIZE, np.random.default_rng(1))
    share = hidden.sum() / (words >= 0).sum()
    assert 0.25 < share < 0.31  # a span that does not fit is cut at a word
    kinds = np.where(read == MASK, 0, np.where(read == ids, 1, 2))
    rows_of_one_kind = sum(len(set(kind[flags])) == 1 for kind, flags in zip(kinds, hidden, strict=True))
    by_token = sum((0.8**n + 0.1**n * 2) for n in hidden.sum(1))
    assert rows_of_one_kind > by_token + 4 * math.sqrt(ROWS) / 2
    runs = [len(run) for flags in hidden for run in "".join("x" if flag else " " for flag in flags).split()]
    assert np.mean(runs) > 2


def test_the_lengths_of_spans_are_geometric():
    assert SHARES.sum() == pytest.approx(1)
    assert (SHARES[1:] / SHARES[:-1]) == pytest.approx(0.8)
    assert (LENGTHS * SHARES).sum() == pytest.approx(3.8, abs=0.01)  # SpanBERT, section 3.1


@pytest.mark.parametrize("unit", ["tokens", "words", "spans"])
def test_every_draw_is_new_and_repeatable(unit):
    ids, _, lengths = rows()
    masking = Masking(unit, 0.15, STARTS)
    one, again, other = (masking(ids, lengths, SIZE, np.random.default_rng(seed)) for seed in (1, 1, 2))
    assert np.array_equal(one[0], again[0])
    assert (one[1] != other[1]).any(1).mean() > 0.5  # in many rows only one or two words are hidden


def test_words_of_a_tokeniser():
    text = "tfkit: 1\nname: r\nmodel: m\ntokeniser: {kind: bpe, byte_fallback: false}\nstopping: {max_steps: 1}\n"
    recipe = recipe_of(text, "r")
    tokeniser = train_tokeniser(recipe.tokeniser, ["the quick, brown fox"] * 9, 25, masks=True)
    masking = masking_of("words", 0.5, tokeniser)
    (ids,) = tokeniser.encode(["the fox, quick"])
    row = np.array([[1, *ids, 2]])
    found = [masking(row, np.array([len(ids) + 2]), tokeniser.size, np.random.default_rng(seed))[1][0] for seed in range(50)]
    starts = [number for number, piece in enumerate(tokeniser.pieces(row[0].tolist())) if piece.startswith("▁")]
    assert len(starts) == 3
    for start, end in zip(starts, [*starts[1:], len(ids) + 1], strict=True):
        assert {tuple(flags[start:end]) for flags in found} == {(True,) * (end - start), (False,) * (end - start)}
