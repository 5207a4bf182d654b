"""What is measured: cells, each one kind of attention call with its pass, `causal-d64-512/training` for instance.

The sizes follow the set-up of the FlashAttention papers (https://arxiv.org/abs/2407.08608, section 4.1): the batch has as many
rows as make `tokens` tokens, the heads as make `width` features. `forward` is one call without gradients, `training` the call
and its backward pass.
"""

from __future__ import annotations

import difflib
import math
import random
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase

from tfkit import Diagnostic, InputError

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


LENGTHS = (512, 1024, 2048, 4096, 8192, 16384)
CACHES = (1024, 4096, 16384, 65536, 131072)
GROUPS = 4
"""Query heads that share a key/value head where decoding is measured, as in Llama 3."""


@dataclass(frozen=True)
class Scale:
    """How large the calls are. `cache` is the number of keys, over all rows, that decoding reads."""

    tokens: int
    width: int
    cache: int


SCALES = {"cuda": Scale(16384, 2048, 131072), "cpu": Scale(1024, 512, 16384)}
"""The default sizes of a device."""


@dataclass(frozen=True)
class Cell:
    """One kind of call. `length` is that of queries and keys, of the keys alone where `decode`; `text` draws lengths of
    sentences instead (multi30k, wmt, or even: from half of `length` up), and `side` says whose: encoder, decoder or cross."""

    name: str
    family: str
    head_dim: int
    length: int
    training: bool = False
    causal: bool = False
    window: int | None = None
    bias: str | None = None
    dropout: float = 0.0
    decode: bool = False
    groups: int = 1
    text: str | None = None
    side: str = "encoder"

    def batch(self, scale: Scale) -> int:
        """Rows; where lengths differ, two at least."""
        return max(1 if self.text is None else 2, (scale.cache if self.decode else scale.tokens) // self.length)

    def heads(self, scale: Scale) -> tuple[int, int]:
        """Query heads, key/value heads."""
        heads = max(self.groups, scale.width // self.head_dim)
        return heads, heads // self.groups


def _kinds() -> Iterator[Cell]:
    for head_dim in (64, 128):
        for length in LENGTHS:
            yield Cell(f"dense-d{head_dim}-{length}", "dense", head_dim, length)
            yield Cell(f"causal-d{head_dim}-{length}", "causal", head_dim, length, causal=True)
    for text in ("multi30k", "wmt"):
        for side in ("encoder", "decoder", "cross"):
            causal = side == "decoder"
            yield Cell(f"{text}-{side}", "padded", 64, NOMINAL[text], causal=causal, text=text, side=side)
    for length in (512, 2048, 8192):
        yield Cell(f"t5-{length}", "T5 bias", 64, length, bias="distance")
        yield Cell(f"alibi-{length}", "ALiBi", 128, length, causal=True, bias="linear")
    for length in (2048, 4096, 16384):
        yield Cell(f"window-{length}", "window", 128, length, causal=True, window=1024)
    for length in CACHES:
        yield Cell(f"decode-{length}", "decode", 128, length, causal=True, decode=True, groups=GROUPS)
    for length in (512, 2048):
        yield Cell(f"dropout-{length}", "dropout", 64, length, dropout=0.1)


def _passes(cell: Cell) -> Iterator[Cell]:
    if not cell.dropout:
        yield replace(cell, name=f"{cell.name}/forward")
    if not cell.decode:
        yield replace(cell, name=f"{cell.name}/training", training=True)


CELLS: tuple[Cell, ...] = tuple(cell for kind in _kinds() for cell in _passes(kind))

QUICK = (
    "dense-d64-512/*", "causal-d64-512/*", "dense-d128-512/forward", "causal-d64-1024/forward", "multi30k-*/training",
    "wmt-*/training",    "t5-512/*", "alibi-512/training", "window-2048/forward", "decode-4096", "decode-16384", "dropout-512",
)  # fmt: skip
"""The default cells on a CPU: about a minute on two cores."""


def chosen(patterns: Iterable[str]) -> list[Cell]:
    """The cells that match any pattern (`*` for any text), with their pass or without. Raises InputError for a pattern that
    matches none."""
    matched: dict[str, Cell] = {}
    for pattern in patterns:
        matching = [cell for cell in CELLS if _matches(cell, pattern)]
        if not matching:
            known = list(dict.fromkeys(cell.name.partition("/")[0] for cell in CELLS))
            near = difflib.get_close_matches(pattern.partition("/")[0], known, 1)
            fix = f"did you mean `{near[0]}`?" if near else "`tfkit bench attention --list` lists them"
            raise InputError(Diagnostic("TFK090", f"argument --cells: no cell matches `{pattern}`", fix))
        matched |= {cell.name: cell for cell in matching}
    return [cell for cell in CELLS if cell.name in matched]


def _matches(cell: Cell, pattern: str) -> bool:
    return pattern == "all" or any(fnmatchcase(name, pattern) for name in (cell.name, cell.name.partition("/")[0]))


def usual(device: str) -> list[Cell]:
    """The default cells of a device."""
    return list(CELLS) if device == "cuda" else chosen(QUICK)
