"""Programs of operations on a cache, and what each row must hold after them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from tfkit.plugin import AttentionInputs, Mask, Numerics

from ..attention.bound import bounds
from ..attention.reference import Reference, reference
from ..differences import double, error_ratio, worst_of
from ..finding import Violation
from ..raised import format_exception

OPTIONAL = ("reorder", "truncate", "free", "branch")
MAX_LENGTH = 2048
"""No row holds more positions, unless pages are larger than 256."""
HEADS = ((4, 2, 8), (2, 2, 16), (3, 1, 8), (4, 2, 80))
"""H, G and D of one program after another: grouped queries, a key/value head for each query head or for all, many features."""
SCALES = (1.0, 0.5, 1.7)
"""Factors of the usual scale D^-0.5."""
LARGE = 40.0
"""Factor of some queries, whose scores are beyond those that exp can take."""
Make = Callable[..., Any]


@dataclass(frozen=True)
class Sizes:
    """The sizes of a cache: B rows at first, H query heads, G key/value heads, D features."""

    B: int = 3
    H: int = 4
    G: int = 2
    D: int = 8


@dataclass(frozen=True)
class Step:
    """One operation with a number per row: positions to append, rows to take, positions to drop, 1 for a row to free. `branch`
    has a number per row that follows, `attend` the number of queries."""

    operation: str
    numbers: tuple[int, ...]

    def __str__(self) -> str:
        return f"{self.operation} {', '.join(map(str, self.numbers))}"


Program = tuple[Step, ...]


@dataclass
class Row:
    """What a row must hold, and what it held before its last change other than an append."""

    keys: Tensor
    values: Tensor
    before: tuple[Tensor, Tensor, str] | None = None


class Execution:
    """A program on a fresh cache.

    Args:
        make: the class of the cache, or a function that makes one.
        dtype: of keys and values.
        device: of keys and values.
        seed: of the numbers; it also decides about the scale and the size of the scores.
        max_length: no row holds more positions.
    """

    def __init__(
        self, make: Make, sizes: Sizes, dtype: torch.dtype, device: str, seed: int, max_length: int = MAX_LENGTH
    ) -> None:
        self.sizes, self.dtype, self.device = sizes, dtype, device
        self.scale = SCALES[seed % len(SCALES)] * sizes.D**-0.5
        self.factor = LARGE if seed % 5 == 4 else 1.0
        self.draw = torch.Generator().manual_seed(seed)
        self.cache = make(
            batch=sizes.B, heads=sizes.H, kv_heads=sizes.G, head_dim=sizes.D, max_length=max_length, dtype=dtype, device=device
        )  # fmt: skip
        nothing = torch.zeros(sizes.G, 0, sizes.D, dtype=dtype)
        self.rows = [Row(nothing, nothing) for _ in range(sizes.B)]
        self.window = getattr(self.cache, "window", None)
        self.worst = 0.0
        self.returned: list[tuple[str, Tensor, Tensor]] = []
        """The last outputs, with copies: a cache does not write to what it has returned."""

    def do(self, step: Step, where: str) -> None:
        """One step. Raises Violation with the row and the query that are wrong."""
        try:
            getattr(self, f"_{step.operation}")(step, where)
        except Violation:
            raise
        except Exception as reason:  # any exception of the cache is reported with the step that raised it
            raise Violation("cache", f"{where} raised {format_exception(reason)}") from reason

    def _numbers(self, *shape: int) -> Tensor:
        return torch.randn(shape, generator=self.draw, dtype=torch.float64).to(self.dtype)

    def _append(self, step: Step, where: str) -> None:
        B, G, D = len(self.rows), self.sizes.G, self.sizes.D
        longest = max(1, *step.numbers)
        keys, values = self._numbers(B, G, longest, D), self._numbers(B, G, longest, D)
        for row, count, key, value in zip(self.rows, step.numbers, keys, values, strict=True):
            row.keys, row.values = torch.cat([row.keys, key[:, :count]], 1), torch.cat([row.values, value[:, :count]], 1)
        self._called("append", where, [keys, values], list(step.numbers))

    def _called(self, method: str, where: str, tensors: list[Tensor], more: Any) -> Any:
        """A method with tensors on the device of the cache, which it may not write to."""
        there = [tensor.to(self.device, copy=True) for tensor in tensors]
        result = getattr(self.cache, method)(*there, more)
        for tensor, copy in zip(tensors, there, strict=True):
            if not torch.equal(tensor, copy.cpu()):
                raise Violation("cache", f"{where} wrote to a tensor of its caller")
        return result

    def _reorder(self, step: Step, where: str) -> None:
        old = self.rows
        self.rows = [Row(old[take].keys, old[take].values, (was.keys, was.values, where))
                     for take, was in zip(step.numbers, old, strict=True)]  # fmt: skip
        self.cache.reorder(list(step.numbers))

    def _branch(self, step: Step, where: str) -> None:
        old = self.rows
        self.rows = [Row(old[take].keys, old[take].values) for take in step.numbers]
        for row, was in zip(self.rows, old, strict=False):  # a row may be new
            row.before = (was.keys, was.values, where)
        self.cache.branch(list(step.numbers))

    def _truncate(self, step: Step, where: str) -> None:
        lengths = []
        for row, drop in zip(self.rows, step.numbers, strict=True):
            length = row.keys.shape[1]
            if self.window is None or length <= self.window:
                kept = max(0, length - drop)
                if kept < length:
                    row.before = (row.keys, row.values, where)
                row.keys, row.values = row.keys[:, :kept], row.values[:, :kept]
            lengths.append(row.keys.shape[1])
        self.cache.truncate(lengths)

    def _free(self, step: Step, where: str) -> None:
        freed = [number for number, chosen in enumerate(step.numbers) if chosen]
        for number in freed:
            row = self.rows[number]
            row.before = (row.keys, row.values, where)
            row.keys, row.values = row.keys[:, :0], row.values[:, :0]
        self.cache.free(freed)

    def _attend(self, step: Step, where: str) -> None:
        """Up to as many queries as the shortest row that is not empty holds."""
        held = [row.keys.shape[1] for row in self.rows if row.keys.shape[1]]
        Q = min([step.numbers[0], *held]) if held else 0
        if not Q:
            return
        sizes, B = self.sizes, len(self.rows)
        query, scale = self.factor * self._numbers(B, sizes.H, Q, sizes.D), self.scale
        output = self._called("attend", where, [query], scale)
        want = (B, sizes.H, Q, sizes.D)
        if not isinstance(output, Tensor) or tuple(output.shape) != want or output.dtype != self.dtype:
            got = f"{tuple(output.shape)} {output.dtype}" if isinstance(output, Tensor) else type(output).__name__
            raise Violation("cache", f"{where} returned {got}, expected {want} {self.dtype}")
        for number, row in enumerate(self.rows):
            if row.keys.shape[1]:
                self._compare(where, number, query[number], output[number], scale)
        for earlier, kept, copy in self.returned:
            if not torch.equal(kept, copy):
                raise Violation("cache", f"{where} changed the output of {earlier}")
        self.returned = [*self.returned[-3:], (where, output, output.clone())]

    def _compare(self, where: str, number: int, query: Tensor, output: Tensor, scale: float) -> None:
        row = self.rows[number]
        wanted = self._reference(query, row.keys, row.values, scale)
        allowed = bounds(wanted, Numerics()).output
        ratio = error_ratio(output[None], wanted.output, allowed)
        self.worst = max(self.worst, float(ratio.max()))
        if bool((ratio <= 1).all()):
            return
        worst, (_, head, at, _) = worst_of(ratio)
        held = row.keys.shape[1]
        wrong = ratio.amax((0, 1, 3)) > 1  # (Q,)
        message = (
            f"{where}: row {number}, which holds {held} positions, is wrong for {int(wrong.sum())} of {len(wrong)} queries; "
            f"worst: query {at} of head {head}, off by {worst:.3g} times what rounding allows; {self.sizes.H} heads over "
            f"{self.sizes.G}, {self.sizes.D} features, scale {scale:.3g}{', large scores' if self.factor > 1 else ''}"
        )
        alike = next((words for words, keys, values in self._alternatives(number)
                      if self._explains(output, query, keys, values, scale)), "")  # fmt: skip
        raise Violation("cache", f"{message}{f'; it is right for {alike}' if alike else ''}")

    def _alternatives(self, number: int) -> Iterator[tuple[str, Tensor, Tensor]]:
        """Other contents that a wrong cache may have read, in words."""
        row = self.rows[number]
        yield "this row without its last position", row.keys[:, :-1], row.values[:, :-1]
        if row.before is not None:
            keys, values, where = row.before
            yield f"what this row held before {where}", keys, values
            more = keys.shape[1]
            yield (f"this row behind what it held before {where}", torch.cat([keys, row.keys], 1),
                   torch.cat([values, row.values], 1))  # fmt: skip
            held = row.keys.shape[1]
            if more > held:
                yield (f"this row followed by what {where} should have removed", torch.cat([row.keys, keys[:, held:]], 1),
                       torch.cat([row.values, values[:, held:]], 1))  # fmt: skip
        for other, neighbour in enumerate(self.rows):
            if other != number:
                yield f"row {other}", neighbour.keys, neighbour.values

    def _explains(self, output: Tensor, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> bool:
        if keys.shape[1] < query.shape[1]:
            return False
        other = self._reference(query, keys, values, scale)
        close = (double(output[None]) - other.output).abs() <= bounds(other, Numerics()).output
        return bool(close.all())

    def _reference(self, query: Tensor, keys: Tensor, values: Tensor, scale: float) -> Reference:
        window = None if self.window is None else (self.window - 1, 0)
        mask = Mask(causal=True, window=window, offset=keys.shape[1] - query.shape[1])
        return reference(AttentionInputs(query[None], keys[None], values[None], mask, scale))


def sizes_of(program: Program, seed: int, heads: tuple[int, int, int] | None = None) -> Sizes:
    """As many rows as the steps up to the first branch need; the other sizes go in turn unless they are `heads`."""
    rows = 1
    for step in program:
        if step.operation == "branch":
            rows = max(rows, 1 + max(step.numbers))
            break
        rows = max(rows, len(step.numbers))
    return Sizes(rows, *(heads or HEADS[seed % len(HEADS)]))


def is_valid(program: Program) -> bool:
    """Whether every step has the rows that the steps before it leave; not where a branch was left out."""
    rows = sizes_of(program, 0).B
    for step in program:
        if step.operation == "branch":
            if max(step.numbers) >= rows:
                return False
            rows = len(step.numbers)
        elif step.operation != "attend" and len(step.numbers) != rows:
            return False
    return True


def drawn_program(draw: Random, sizes: Sizes, operations: tuple[str, ...], page: int, equal: bool, queries: int) -> Program:
    """A program of 6 to 18 steps. Appends are of one position, of a few, or as many as fill a page."""
    rows = sizes.B
    steps = [Step("append", _lengths(draw, rows, (1, page, page + 1, 2 * page), equal))]
    kinds = ["append", "attend", "attend", *operations]
    for _ in range(draw.randint(6, 18)):
        kind = draw.choice(kinds)
        if kind == "append":
            counts = _lengths(draw, rows, (1, 1, 1, 2, 3, page - 1, page, page + 1), equal)
            if sum(max(step.numbers) for step in steps if step.operation == "append") + max(counts) < MAX_LENGTH:
                steps.append(Step(kind, counts))
        elif kind == "attend":
            steps.append(Step(kind, (min(queries, draw.choice([1, 1, 1, 2, 3, queries])),)))
        elif kind == "reorder":
            steps.append(Step(kind, tuple(draw.randrange(rows) for _ in range(rows))))
        elif kind == "truncate":
            steps.append(Step(kind, _lengths(draw, rows, (0, 1, 2, page), equal)))
        elif kind == "branch":
            taken = tuple(draw.randrange(rows) for _ in range(draw.randint(1, 2 * sizes.B)))
            steps.append(Step(kind, taken))
            rows = len(taken)
        else:
            freed = tuple(draw.randrange(2) for _ in range(rows))
            steps.append(Step(kind, (freed[0],) * rows if equal else freed))
    return (*steps, Step("append", (1,) * rows), Step("attend", (1,)))


def _lengths(draw: Random, rows: int, choices: tuple[int, ...], equal: bool) -> tuple[int, ...]:
    drawn = tuple(draw.choice(choices) for _ in range(rows))
    return (drawn[0],) * rows if equal else drawn
