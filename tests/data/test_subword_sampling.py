"""The pieces that training draws: judged by plain loops over all segmentations, by the library, and by counts."""

import json
import math
import random
from collections import Counter
from itertools import pairwise

import pytest

from tfkit.data.subword_sampling import SubwordSampler, bpe_dropout, draw_of, unigram_sampling
from tfkit.data.tokeniser import train_tokeniser
from tfkit.recipe import recipe_of
from translation_task import sentences

LINES = [f"{source}, {target}! № {number}" for number, (source, target) in enumerate(sentences(150))]


def trained(kind, byte_fallback="true", symbols="[]"):
    size = 420 if byte_fallback == "true" else 130
    text = "tfkit: 1\nname: x\nmodel: m\nstopping: {max_steps: 1}\n"
    text += f"tokeniser: {{kind: {kind}, byte_fallback: {byte_fallback}, symbols: {symbols}}}\n"
    return train_tokeniser(recipe_of(text.encode(), "x.yaml").tokeniser, LINES, size)


@pytest.fixture(scope="module")
def bpe():
    return trained("bpe", symbols="['<url>']")


@pytest.fixture(scope="module")
def unigram():
    return trained("unigram", "false")


def test_without_dropout_the_pieces_are_those_of_the_library(bpe):
    sampler = SubwordSampler(bpe, bpe_dropout(bpe, 0.0), 1000)
    for line in [*LINES, "the <url>dog 狗 runs <url>", "aaaa thethe", ""]:
        [ids] = bpe.encode([line])
        assert sampler([1, *ids, 2], random.Random(0)) == [1, *ids, 2]


def test_with_dropout_1_every_piece_is_a_character_and_the_text_stays(bpe):
    sampler = SubwordSampler(bpe, bpe_dropout(bpe, 1.0), 1000)
    for line in ["the old dog, <url> 狗", *LINES[:20]]:
        [ids] = bpe.encode([line])
        sampled = sampler([*ids, 2], random.Random(0))
        assert sampled[-1] == 2
        pieces = bpe.pieces(sampled[:-1])
        assert all(len(piece) == 1 or piece in ("<url>",) or piece.startswith("<0x") for piece in pieces)
        assert bpe.decode(sampled) == bpe.decode(ids) == line


def test_a_row_that_would_be_longer_than_the_limit_stays(bpe):
    [ids] = bpe.encode(["the old dog sees"])
    assert SubwordSampler(bpe, bpe_dropout(bpe, 1.0), 14)(ids, random.Random(0)) == ids
    assert len(SubwordSampler(bpe, bpe_dropout(bpe, 1.0), 17)(ids, random.Random(0))) == 17


def dropout_distribution(word, ranks, p):
    """The probability of every result of the algorithm, by a loop over all subsets of merges that are left out."""
    chances, waiting = Counter(), Counter({tuple(word): 1.0})
    while waiting:
        parts, chance = waiting.popitem()
        places = [at for at, pair in enumerate(pairwise(parts)) if pair in ranks]
        for subset in range(2 ** len(places)):
            left = [at for bit, at in enumerate(places) if subset >> bit & 1]
            share = chance * (1 - p) ** len(left) * p ** (len(places) - len(left))
            if not left:
                chances[parts] += share
                continue
            best = min(ranks[parts[at], parts[at + 1]] for at in left)
            merged, at = [], 0
            while at < len(parts):
                if at in left and ranks[parts[at], parts[at + 1]] == best:
                    merged.append(parts[at] + parts[at + 1])
                    at += 2
                else:
                    merged.append(parts[at])
                    at += 1
            waiting[tuple(merged)] += share
    return chances


def check_frequencies(divide, word, expected, count=6000):
    draw, drawn = random.Random(5), Counter()
    for _ in range(count):
        drawn[tuple(divide(word, draw))] += 1
    assert drawn.keys() <= expected.keys()
    assert sum(expected.values()) == pytest.approx(1)
    for parts, chance in expected.items():
        deviation = math.sqrt(count * chance * (1 - chance))
        assert abs(drawn[parts] - count * chance) <= 4.5 * deviation + 1e-9, (parts, drawn[parts], count * chance)


@pytest.mark.parametrize("p", [0.1, 0.5])
@pytest.mark.parametrize("word", ["▁house", "▁small", "▁sees"])
def test_frequencies_of_dropout(bpe, word, p):
    merges = json.loads(bpe.to_json())["model"]["merges"]
    expected = dropout_distribution(word, {tuple(pair): rank for rank, pair in enumerate(merges)}, p)
    assert len(expected) > 3
    check_frequencies(bpe_dropout(bpe, p), word, expected)


@pytest.mark.parametrize("alpha", [0.0, 0.2, 1.0])
def test_frequencies_of_unigram_sampling(unigram, alpha):
    scores = dict(json.loads(unigram.to_json())["model"]["vocab"])
    word = "▁house"

    def segmentations(rest):
        if not rest:
            yield ()
        for end in range(1, len(rest) + 1):
            if rest[:end] in scores:
                yield from ((rest[:end], *others) for others in segmentations(rest[end:]))

    weights = {parts: math.exp(alpha * sum(scores[part] for part in parts)) for parts in segmentations(word)}
    assert len(weights) > 3
    total = sum(weights.values())
    check_frequencies(unigram_sampling(unigram, alpha), word, {parts: weight / total for parts, weight in weights.items()})


def test_a_large_alpha_gives_the_best_pieces_and_every_text_stays(unigram):
    sharp = SubwordSampler(unigram, unigram_sampling(unigram, 100.0), 1000)
    flat = SubwordSampler(unigram, unigram_sampling(unigram, 0.1), 1000)
    scores, differs = dict(json.loads(unigram.to_json())["model"]["vocab"]), 0
    for line in LINES[:40]:
        [ids] = unigram.encode([line])
        best, drawn = (sum(scores[piece] for piece in unigram.pieces(some)) for some in (ids, sharp(ids, random.Random(1))))
        assert drawn == pytest.approx(best, abs=0.1)  # some best pieces have nearly the same probability as others
        sampled = flat(ids, random.Random(1))
        assert unigram.decode(sampled) == unigram.decode(ids)
        differs += sampled != ids
    assert differs > 30


def test_the_draws_of_a_row_depend_on_its_place_alone():
    places = [(0, 1, 2, "source"), (1, 1, 2, "source"), (0, 2, 2, "source"), (0, 1, 3, "source"), (0, 1, 2, "target")]
    assert len({draw_of(*place).random() for place in places}) == len(places)
    assert draw_of(*places[0]).random() == draw_of(*places[0]).random()
