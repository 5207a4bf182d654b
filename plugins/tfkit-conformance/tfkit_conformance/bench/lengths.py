"""Sentence lengths of parallel text, from which batches with realistic padding are drawn.

Tokens are words and punctuation marks; each sentence has an end token besides, and a decoder's is preceded by a start token
in place of it, so both sides count one more.
"""

from __future__ import annotations

import math
import random

Pair = tuple[int, int]

BIN = 4
MULTI30K = (
    (1, 0, 2), (1, 1, 712), (1, 2, 296), (1, 3, 11), (2, 0, 2), (2, 1, 1379), (2, 2, 7509), (2, 3, 1515), (2, 4, 57),
    (2, 5, 2), (3, 1, 56), (3, 2, 3271), (3, 3, 6046), (3, 4, 1211), (3, 5, 101), (3, 6, 6), (4, 1, 2), (4, 2, 121),
    (4, 3, 1739), (4, 4, 2273), (4, 5, 478), (4, 6, 47), (4, 7, 2), (5, 2, 6), (5, 3, 96), (5, 4, 645), (5, 5, 634),
    (5, 6, 152), (5, 7, 23), (6, 3, 4), (6, 4, 57), (6, 5, 193), (6, 6, 143), (6, 7, 46), (7, 4, 3), (7, 5, 19), (7, 6, 46),
    (7, 7, 95),
)  # fmt: skip
"""Multi30k (https://github.com/multi30k/dataset), the 29,000 English-German pairs of its training set: (source length // 4,
target length // 4, pairs). Lengths from 28 up, at most 45, are in the last bin."""

WMT_MEAN, WMT_SIGMA, RATIO_SIGMA, LONGEST = 25.8, 0.6, 0.17, 128
"""WMT 2014 English-German: 116 million English and 110 million German words in 4.5 million pairs
(https://arxiv.org/abs/1508.04025, section 4.1) make the mean and the ratio. That lengths are log-normal, and how wide, is
assumed; the spread of the ratio is Multi30k's."""

WMT_RATIO = 110 / 116
NOMINAL = {"multi30k": 32, "wmt": 64}
"""Tokens that a sentence counts for when a batch is filled; the longest of a batch is about as long."""


def drawn(name: str, pairs: int, seed: int) -> list[Pair]:
    """Source and target lengths of so many sentence pairs of `multi30k` or `wmt`, the same for the same seed."""
    chance = random.Random(f"{name} {seed}")
    return [_multi30k(chance) if name == "multi30k" else _wmt(chance) for _ in range(pairs)]


def even(length: int, rows: int, seed: int) -> list[Pair]:
    """Lengths from half of `length` up, evenly; one is `length`."""
    chance = random.Random(f"even {length} {seed}")
    return [(length, length), *((size, size) for size in chance.choices(range((length + 1) // 2, length + 1), k=rows - 1))]


def _multi30k(chance: random.Random) -> Pair:
    [(source, target, _)] = chance.choices(MULTI30K, [count for *_, count in MULTI30K])
    return max(1, BIN * source + chance.randrange(BIN)) + 1, max(1, BIN * target + chance.randrange(BIN)) + 1


def _wmt(chance: random.Random) -> Pair:
    source = WMT_MEAN * math.exp(chance.gauss(-(WMT_SIGMA**2) / 2, WMT_SIGMA))
    target = source * WMT_RATIO * math.exp(chance.gauss(-(RATIO_SIGMA**2) / 2, RATIO_SIGMA))
    return min(LONGEST, max(1, round(source)) + 1), min(LONGEST, max(1, round(target)) + 1)
