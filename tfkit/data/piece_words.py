"""Which words of a text each piece belongs to. Words are the parts between white space, counted from 0."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from .tokeniser import Ranges, TextTokeniser

WORD = re.compile(r"\S+")
Words = range
"""The words that a piece has characters of: one, several where the piece has white space inside, none for white space, a mark
of a word's start, or a special token."""


def encode_with_words(tokeniser: TextTokeniser, text: str) -> tuple[list[int], list[Words]]:
    """The ids of a text, without special tokens, and the words of each. Raises InputError as `encode_with_ranges`."""
    ((ids, ranges),) = tokeniser.encode_with_ranges([text])
    words = words_of_ranges(text, ranges)
    marks = [not piece.strip(tokeniser.word_mark) for piece in tokeniser.pieces(ids)]
    return ids, [range(0) if is_mark else of_piece for is_mark, of_piece in zip(marks, words, strict=True)]


def words_of_ranges(text: str, ranges: Ranges) -> list[Words]:
    """The words of pieces with these characters, as `TextTokeniser.encode_with_ranges` returns them."""
    starts = [word.start() for word in WORD.finditer(text)]
    return [
        range(bisect_right(starts, start) - 1, bisect_right(starts, end - 1)) if start < end else range(0)
        for start, end in ranges
    ]


def words_of_ids(tokeniser: TextTokeniser, ids: Sequence[int]) -> list[Words]:
    """The words of generated ids in the text that they decode to. A character of several bytes belongs to the last of them."""
    text, ends = tokeniser.decode(ids), [0]
    for count in range(1, len(ids) + 1):
        ends.append(max(ends[-1], _common_prefix(text, tokeniser.decode(ids[:count]))))
    ranges = []
    for start, end in pairwise(ends):
        part = text[start:end]
        ranges.append((end - len(part.lstrip()), start + len(part.rstrip())))
    return words_of_ranges(text, ranges)


def _common_prefix(text: str, other: str) -> int:
    """The number of characters that two texts begin with alike."""
    if text.startswith(other):
        return len(other)
    return next((at for at, (one, two) in enumerate(zip(text, other, strict=False)) if one != two), min(len(text), len(other)))
