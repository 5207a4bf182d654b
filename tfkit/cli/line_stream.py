"""Lines of standard input, one after the other, for the commands that make something of each."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from typing import Protocol, TypeVar

from .output import standard_input

CHUNK = 1000
"""Lines that are read before any is answered, so that they can be sorted by length; where a person types, one."""


class OfLine(Protocol):
    """What became of a line: the tokens of it that were `read`, and the `cut` ones that were too many."""

    @property
    def cut(self) -> int: ...

    @property
    def read(self) -> int: ...


Made = TypeVar("Made", bound=OfLine, covariant=True)


class Maker(Protocol[Made]):
    """Makes something of every line, in their order, `chunk` lines at a time."""

    def __call__(self, lines: Iterator[str], /, *, chunk: int) -> Iterator[Made]: ...


def streamed(make: Maker[Made]) -> Iterator[tuple[int, Made]]:
    """What becomes of the lines of standard input, with their numbers from 1. Lines that were cut are named on standard error,
    and on a terminal the speed. Raises InputError."""
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
