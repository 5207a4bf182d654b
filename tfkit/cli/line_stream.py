"""Streams the lines of standard input through a model."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from typing import Any, Protocol, TypeVar

from .output import standard_input

CHUNK = 1000
"""Lines read at once, to sort them by length; one line at a time on a terminal."""


class LineResult(Protocol):
    """The result of a line, with the number of its tokens that are `unknown`."""

    @property
    def unknown(self) -> int: ...


Result = TypeVar("Result", bound=LineResult, covariant=True)


class LineProcessor(Protocol[Result]):
    """Processes the lines in order, `chunk` lines at a time."""

    def __call__(self, lines: Iterator[str], /, *, chunk: int) -> Iterator[Result]: ...


def cut_off(result: Any) -> str:
    """What standard error says of a line whose end the model did not read, "" for others."""
    return f"{result.read + result.cut:,} tokens, the first {result.read:,} were read" if result.cut else ""


def streamed(
    process: LineProcessor[Result], notice: Callable[[Result], str] = cut_off, file: str | None = None,
    lines: Iterator[str] | None = None,
) -> Iterator[tuple[int, Result]]:  # fmt: skip
    """The results of the lines of standard input, or of `lines` of `file`, with line numbers from 1. Standard error reports the
    notice of each line that has one, the number of unknown tokens, and on a terminal the speed. Raises InputError."""
    from ..data import lines_of

    start, count, chunk, name = time.monotonic(), 0, CHUNK, file or "<stdin>"
    if lines is None:
        typed = standard_input()
        lines, chunk = lines_of(typed, name), 1 if typed.isatty() else CHUNK
    tokens = with_unknown = first = 0
    try:
        for count, result in enumerate(process(lines, chunk=chunk), 1):
            if text := notice(result):
                print(f"{name}:{count}: {text}", file=sys.stderr)
            if result.unknown:
                tokens, with_unknown, first = tokens + result.unknown, with_unknown + 1, first or count
            yield count, result
            if chunk == 1:
                sys.stdout.flush()
    finally:
        if tokens:
            place = f" in {with_unknown:,} {'line' if with_unknown == 1 else 'lines'}, the first in line {first:,}"
            print(f"{name}: {unknown_text(tokens, place)}", file=sys.stderr)
    if sys.stderr.isatty() and count:
        print(f"{count:,} lines, {count / (time.monotonic() - start):,.1f} a second", file=sys.stderr)


def unknown_text(tokens: int, place: str = "") -> str:
    """The number of unknown tokens in words."""
    return f"{tokens:,} unknown {'token' if tokens == 1 else 'tokens'}{place}; the vocabulary has no such piece"
