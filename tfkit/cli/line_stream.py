"""Streams the lines of standard input through a model."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Protocol, TypeVar

from .output import standard_input

CHUNK = 1000
"""Lines read at once, to sort them by length; one line at a time on a terminal."""


class LineResult(Protocol):
    """The result of a line: the number of its tokens that were `read`, of those that were `cut` off, and of those that are
    `unknown`."""

    @property
    def cut(self) -> int: ...

    @property
    def read(self) -> int: ...

    @property
    def unknown(self) -> int: ...


Result = TypeVar("Result", bound=LineResult, covariant=True)


class LineProcessor(Protocol[Result]):
    """Processes the lines in order, `chunk` lines at a time."""

    def __call__(self, lines: Iterator[str], /, *, chunk: int) -> Iterator[Result]: ...


def streamed(process: LineProcessor[Result]) -> Iterator[tuple[int, Result]]:
    """The results of the lines of standard input, with line numbers from 1. Standard error reports lines that were cut off, the
    number of unknown tokens, and on a terminal the speed. Raises InputError."""
    from ..data import lines_of

    start, count, lines = time.monotonic(), 0, standard_input()
    chunk = 1 if lines.isatty() else CHUNK
    tokens = with_unknown = first = 0
    try:
        for count, result in enumerate(process(lines_of(lines, "<stdin>"), chunk=chunk), 1):
            if result.cut:
                read = f"{result.read + result.cut:,} tokens, the first {result.read:,} were read"
                print(f"<stdin>:{count}: {read}", file=sys.stderr)
            if result.unknown:
                tokens, with_unknown, first = tokens + result.unknown, with_unknown + 1, first or count
            yield count, result
            if chunk == 1:
                sys.stdout.flush()
    finally:
        if tokens:
            place = f" in {with_unknown:,} {'line' if with_unknown == 1 else 'lines'}, the first in line {first:,}"
            print(f"<stdin>: {unknown_text(tokens, place)}", file=sys.stderr)
    if sys.stderr.isatty() and count:
        print(f"{count:,} lines, {count / (time.monotonic() - start):,.1f} a second", file=sys.stderr)


def unknown_text(tokens: int, place: str = "") -> str:
    """The number of unknown tokens in words."""
    return f"{tokens:,} unknown {'token' if tokens == 1 else 'tokens'}{place}; the vocabulary has no such piece"
