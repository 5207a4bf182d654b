"""Programs near the numbers of a cache's source, and programs with one size far out.

near      each number c of the source, and c - 1, c + 1, 2 c, 2 c + 1, as positions at once and one by one, as rows, heads,
          features and queries
unusual   more than 1,024 positions, all positions that the cache was made for, 17 and 33 rows, many heads, features and queries
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..source import Source
from .program import HEADS, MAX_LENGTH, Program, Step

MAX_ROWS, MAX_HEADS, MAX_FEATURES, MAX_QUERIES = 80, 40, 320, 300
MAX_POSITIONS = 8400
"""Of one row, for a number of the source."""
ONE_BY_ONE = 320
"""Up to so many positions are also appended one by one."""
LOOK = Step("attend", (1,))


class Plan(NamedTuple):
    """A program, and how it runs.

    Args:
        program: the steps.
        heads: H, G and D, if the program needs certain ones.
        twice: on two caches in turn, which hold other numbers.
    """

    program: Program
    heads: tuple[int, int, int] | None = None
    twice: bool = False


def unusual(equal: bool, queries: int, operations: tuple[str, ...]) -> Iterator[Plan]:
    """One size after another far out."""
    for length in (1023, 1030, MAX_LENGTH - 2):
        yield Plan(_long(length, 3, equal, queries))
    for rows in (17, 33):
        yield from _many_rows(rows, equal, operations)
    for heads in ((16, 2, 8), (9, 3, 8), (4, 4, 144), (2, 1, 256)):
        yield Plan(_long(21, 3, equal, queries), heads)
    if queries > 1:
        yield from _many_queries(65, equal)


def near(source: Source, equal: bool, queries: int, operations: tuple[str, ...]) -> Iterator[Plan]:
    """Around each number of the source, the deciding ones first."""
    for number in source.integers:
        for size in dict.fromkeys((number, number + 1, number - 1, 2 * number, 2 * number + 1)):
            if size < 2:
                continue
            if size <= MAX_POSITIONS:
                yield Plan(_long(size, 2, equal, queries))
            if size <= ONE_BY_ONE:
                yield Plan((Step("append", (1,)), LOOK) * (size + 2), HEADS[1])
            if size <= MAX_ROWS:
                yield from _many_rows(size, equal, operations)
            if size <= MAX_HEADS:
                yield from (
                    Plan(_long(9, 2, equal, queries), heads) for heads in ((size, size, 8), (size, 1, 8), (2 * size, size, 8))
                )
            if size <= MAX_FEATURES:
                yield Plan(_long(9, 2, equal, queries), (2, 1, size))
            if queries > 1 and size <= MAX_QUERIES:
                yield from _many_queries(size, equal)


def positions_of(program: Program) -> int:
    """The most positions that a row of a program holds."""
    return sum(max(step.numbers) for step in program if step.operation == "append")


def _long(length: int, rows: int, equal: bool, queries: int) -> Program:
    """`length` positions at once, then two more one by one."""
    lengths = (length,) * rows if equal else (length, *(max(1, length - 3 * row) for row in range(1, rows)))
    one = Step("append", (1,) * rows)
    return (Step("append", lengths), Step("attend", (min(3, queries),)), one, LOOK, one, LOOK)


def _many_rows(rows: int, equal: bool, operations: tuple[str, ...]) -> Iterator[Plan]:
    lengths = tuple(5 if equal else 1 + row % 7 for row in range(rows))
    start, one = (Step("append", lengths), LOOK), Step("append", (1,) * rows)
    yield Plan((*start, one, LOOK))
    if "reorder" in operations:
        yield Plan((*start, Step("reorder", (*range(1, rows), 0)), LOOK, one, LOOK))
    if "branch" in operations:
        taken = tuple(row // 2 for row in range(2 * rows))
        yield Plan((*start, Step("branch", taken), LOOK, Step("append", (1,) * len(taken)), LOOK))
    if "free" in operations:
        freed = (1,) * rows if equal else tuple(row % 2 for row in range(rows))
        yield Plan((*start, Step("free", freed), LOOK, one, LOOK))


def _many_queries(size: int, equal: bool) -> Iterator[Plan]:
    """A prefill with attention for all of its positions, and a chunk of as many behind it."""
    lengths = (size, size) if equal else (size, size + 3)
    yield Plan((Step("append", lengths), Step("attend", (size,)), Step("append", lengths), Step("attend", (size,))))
