"""A row of a corpus before it is written."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

GROUP = 2_000
"""Rows encoded in one call."""
Numbered = Iterator[tuple[int, tuple[str, ...]]]
"""The texts of rows, with the line number from 0."""


@dataclass(frozen=True)
class Row:
    """A row of a corpus.

    Attributes:
        line: The line where it ends, from 1.
        texts: By column.
        ids: By column.
        bare: The number of tokens of each text, without special tokens.
        label: Of a classification or a pair.
        random: Whether the second of two pieces of text does not follow the first.
        tags: The tag and the line of the word that starts at each token; None for other tokens.
        span: The first and the last position of an answer.
        answerable: Whether the question has an answer, perhaps in another row.
        unfit: The reason to leave the row out of the training data.
    """

    line: int
    texts: tuple[str, ...]
    ids: tuple[list[int], ...]
    bare: tuple[int, ...]
    label: str | None = None
    random: bool | None = None
    tags: list[tuple[str, int] | None] | None = None
    span: tuple[int, int] | None = None
    answerable: bool = True
    unfit: str | None = None
