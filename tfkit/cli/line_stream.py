"""Streams the lines of standard input through a model."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Protocol, TypeVar

from .output import standard_input

CHUNK = 1000
"""Lines read at once, to sort them by length; one line at a time on a terminal."""


class OfLine(Protocol):
    """The result of a line: how many of its tokens were `read`, and how many were `cut` off."""

    @property
    def cut(self) -> int: ...

    @property
    def read(self) -> int: ...


Made = TypeVar("Made", bound=OfLine, covariant=True)


class Maker(Protocol[Made]):
    """Processes the lines in order, `chunk` lines at a time."""

    def __call__(self, lines: Iterator[str], /, *, chunk: int) -> Iterator[Made]: ...


def streamed(make: Maker[Made]) -> Iterator[tuple[int, Made]]:
    """The results of the lines of standard input, with line numbers from 1. Lines that were cut off are reported on standard
    error, and on a terminal the speed. Raises InputError."""
    from ..data import lines_of

    began, count, lines = time.monotonic(), 0, standard_input()
    chunk = 1 if lines.isatty() else CHUNK
    for count, made in enumerate(make(lines_of(lines, "<stdin>"), chunk=chunk), 1):
        if made.cut:
            print(f"<stdin>:{count}: {made.read + made.cut:,} tokens, the first {made.read:,} were read", file=sys.stderr)
        yield count, made
        if chunk == 1:
            sys.stdout.flush()
    if sys.stderr.isatty() and count:
        print(f"{count:,} lines, {count / (time.monotonic() - began):,.1f} a second", file=sys.stderr)
