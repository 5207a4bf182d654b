"""Checks a decoding kernel with a cache: programs of operations, each compared with attention over what a row must hold."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import groupby, pairwise
from operator import add
from random import Random
from typing import Any

from tfkit import Diagnostic, InputError

from ..attention.case import DTYPES
from ..callables.locate import object_named
from ..finding import Finding, OutOfTime, Violation
from ..limit import time_limit
from ..profile import profile_of
from ..report import CheckResult, ConformanceReport, Status
from ..resolve import known_dtypes, missing_device, versions
from ..source import Source, read_source
from .guided_programs import Plan, near, positions_of, unusual
from .program import MAX_LENGTH, OPTIONAL, Execution, Make, Program, Sizes, Step, drawn_program, is_valid, sizes_of

PAGES = (16, 32, 64, 128, 256)
"""Sizes of pages that are walked where the cache names none."""
DRAWN = {"quick": 40, "standard": 300, "deep": 3000}
"""Drawn programs by profile, in each dtype."""
SHRINKS = 150
"""Programs that are tried to make a failing one shorter."""
NEAR, UNUSUAL = "numbers of the source", "unusual sizes"
SECONDS = {"quick": 10.0, "standard": 120.0, "deep": 1200.0}
"""How long programs near the numbers of the source are made, in each dtype, by profile."""
RULE = "A4"
"""Position decides what a query sees: also in a cache."""
Event = Callable[[str, Any], None]


def check_cache(
    make: Make | str,
    *,
    profile: str = "quick",
    device: str = "cpu",
    dtypes: Iterable[str] = ("float32",),
    seed: int = 0,
    name: str = "",
    limit: float = 60.0,
    checks: Iterable[str] | None = None,
    event: Event = lambda check, case: None,
) -> ConformanceReport:
    """Checks a decoding cache by programs of operations. See `DecodingCache` for what it must offer.

    Args:
        make: the class of the cache or a function that makes one, or "module:name" of it.
        profile: how many drawn programs: "quick", "standard" or "deep".
        device: "cpu", "cuda" or "cuda:1".
        dtypes: of keys and values.
        seed: of the programs and their numbers.
        name: in reports; by default that of the class.
        limit: seconds that one program may take.
        checks: names of checks, if not all.
        event: called with the check before each program.

    Returns:
        The report: verdict, checks, and of each failed check the shortest program found that fails.

    Raises:
        InputError: there is no such class, profile or dtype, or no cache can be made.
    """
    if isinstance(make, str):
        name, make = name or make, object_named(make, "--cache")
    if not callable(make):
        raise InputError(Diagnostic("TFK094", f"--cache: `{name}` is a {type(make).__name__}", "name a class"))
    named = name or f"{make.__module__}:{getattr(make, '__qualname__', type(make).__name__)}"
    chosen, wanted = profile_of(profile).name, tuple(sorted(known_dtypes(dtypes)))
    started, cache_checks = time.perf_counter(), _Checks(make, device, seed, limit, event)
    if reason := missing_device(device):
        results: tuple[CheckResult, ...] = (CheckResult("programs", "", "", "not run", note=reason),)
    else:
        cache_checks.probe(named, wanted[0])
        if unknown := sorted({*(checks or ())} - {check for check, _ in cache_checks.families(0)}):
            raise InputError(Diagnostic("TFK094", f"`{named}` has no check `{unknown[0]}`", f"checks: {', '.join(SUMMARIES)}"))
        for dtype in wanted:
            for check, plans in cache_checks.families(DRAWN[chosen]):
                if checks is None or check in checks:
                    with cache_checks.source.traced():
                        cache_checks.run(check, dtype, plans, SECONDS[chosen] if check == NEAR else None)
        cache_checks.note_evidence()
        results = tuple(cache_checks.results.values())
    return ConformanceReport(
        "cache", named, "", {}, device, wanted, chosen, seed, versions(device), results, tuple(cache_checks.findings.values()),
        seconds=round(time.perf_counter() - started, 2),
    )  # fmt: skip


class _Checks:
    """The checks of one cache, with their results so far."""

    def __init__(self, make: Make, device: str, seed: int, limit: float, event: Event) -> None:
        self.make, self.device, self.seed, self.limit, self.event = make, device, seed, limit, event
        self.sizes, self.results, self.findings = Sizes(), dict[str, CheckResult](), dict[str, Finding]()
        self.source = Source()
        self.reached = 0
        """Steps of the last program until it ended."""
        self.operations: tuple[str, ...] = ()
        self.pages: tuple[int, ...] = PAGES
        self.equal, self.window, self.max_length = False, 0, MAX_LENGTH

    def probe(self, name: str, dtype: str) -> None:
        """What the cache offers. Raises InputError if none can be made."""
        try:
            cache = Execution(self.make, self.sizes, DTYPES[dtype], self.device, 0).cache
        except Exception as reason:  # whatever the author's class raises is the answer
            call = f"make(batch=3, heads=4, kv_heads=2, head_dim=8, max_length={MAX_LENGTH}, dtype=..., device=...)"
            message = f"--cache: `{name}` cannot be made by {call}: {type(reason).__name__}: {reason}"
            raise InputError(Diagnostic("TFK094", message, "take these keywords")) from None
        missing = [method for method in ("append", "attend") if not callable(getattr(cache, method, None))]
        if missing:
            message = f"--cache: `{name}` has no method `{missing[0]}`"
            raise InputError(Diagnostic("TFK094", message, "see tfkit_conformance.caches.contract"))
        self.operations = tuple(operation for operation in OPTIONAL if callable(getattr(cache, operation, None)))
        self.equal = bool(getattr(cache, "equal_lengths", False))
        self.source = read_source(self.make, cache)
        self.window, page = _positions(name, cache, "window"), _positions(name, cache, "page_size")
        if page:
            self.pages, self.max_length = (page,), max(MAX_LENGTH, 8 * page)

    def families(self, drawn: int) -> Iterator[tuple[str, Iterator[Plan]]]:
        """The checks by name, and their programs."""
        yield "steps", map(Plan, self._steps())
        yield "one row", map(Plan, self._one_row())
        yield "prefill and chunks", map(Plan, self._chunks())
        yield "borders of pages", map(Plan, self._borders())
        for operation in self.operations:
            yield operation, map(Plan, self._around(operation))
        yield "two caches", (Plan(program, twice=True) for program in self._drawn(5))
        yield "drawn programs", map(Plan, self._drawn(drawn))
        yield UNUSUAL, unusual(self.equal, self._most_queries(), self.operations)
        if self.source.integers:
            yield NEAR, near(self.source, self.equal, self._most_queries(), self.operations)

    def note_evidence(self) -> None:
        """Says what was known of the source, at the last check that depends on it."""
        last = next((check for check in (NEAR, UNUSUAL) if check in self.results), None)
        if last is not None:
            before = self.results[last]
            note = "; ".join(filter(None, [before.note, self.source.evidence()]))
            self.results[last] = replace(before, note=note)

    def run(self, check: str, dtype: str, plans: Iterator[Plan], seconds: float | None = None) -> None:
        """The programs of one check, in no more than so many seconds."""
        before = self.results.get(check, CheckResult(check, RULE, SUMMARIES[check], "passed"))
        if before.status == "failed":
            return
        started, examples, worst = time.perf_counter(), before.examples, before.worst or 0.0
        status: Status = before.status
        note = before.note
        for number, plan in enumerate(plans):
            if seconds is not None and time.perf_counter() - started > seconds:
                note = f"ended after {seconds:g} s in {dtype}"
                break
            self.event(f"{check} {dtype}", None)
            examples += 1
            try:
                worst = max(worst, self._executed(plan, dtype, self.seed + number))
            except OutOfTime as late:
                message = f"a program {late.message}"
                self.findings[check] = Finding(check, RULE, message, examples=examples, call=_listed(plan.program))
                status = "failed"
                break
            except Violation as violation:
                shortest, failure = self._shortened(plan, violation, dtype, self.seed + number)
                self.findings[check] = Finding(check, RULE, failure.message, examples=examples, call=_listed(shortest))
                status = "failed"
                break
        elapsed = before.seconds + time.perf_counter() - started
        self.results[check] = CheckResult(check, RULE, SUMMARIES[check], status, examples, worst, round(elapsed, 3), note=note)

    def _executed(self, plan: Plan, dtype: str, seed: int) -> float:
        """The largest error over its bound. Raises Violation."""
        self.reached = 0
        longest = max(self.max_length, positions_of(plan.program))
        with time_limit(self.limit):
            sizes = sizes_of(plan.program, seed, plan.heads)
            seeds = (seed, seed + 1_000_003) if plan.twice else (seed,)
            executions = [Execution(self.make, sizes, DTYPES[dtype], self.device, number, longest) for number in seeds]
            for step in plan.program:
                self.reached += 1
                for number, execution in enumerate(executions):
                    of = f" of cache {number + 1}" if plan.twice else ""
                    execution.do(step, f"step {self.reached} ({step}){of}")
        return max(execution.worst for execution in executions)

    def _shortened(self, plan: Plan, violation: Violation, dtype: str, seed: int) -> tuple[Program, Violation]:
        """The program without steps that the failure does not need, and with appends joined."""
        left, shortest = SHRINKS, (plan.program[: self.reached], violation)
        changed = True
        while changed:
            changed = False
            for shorter in filter(is_valid, _shorter(shortest[0])):
                if not left:
                    return shortest
                left -= 1
                try:
                    self._executed(plan._replace(program=shorter), dtype, seed)
                except Violation as same:
                    shortest, changed = (shorter[: self.reached], same), True
                    break
        return shortest

    def _rows(self, *numbers: int, rows: int | None = None) -> tuple[int, ...]:
        """A number per row; the first for all if the rows have one length."""
        rows = self.sizes.B if rows is None else rows
        repeated = [numbers[row % len(numbers)] for row in range(rows)]
        return (repeated[0],) * rows if self.equal else tuple(repeated)

    def _steps(self) -> Iterator[Program]:
        turn = (Step("append", self._rows(1)), Step("attend", (1,)))
        yield turn * 40
        yield (Step("append", self._rows(5, 1, 3)), Step("attend", (1,)), *turn * 20)
        yield (Step("append", self._rows(4, 2, 7)), *(Step("append", self._rows(1, 0, 2)), Step("attend", (1,))) * 12)

    @staticmethod
    def _one_row() -> Iterator[Program]:
        one, look = Step("append", (1,)), Step("attend", (1,))
        for length in (1, 2, 17, 65):
            yield (Step("append", (length,)), look, *(one, look) * 3)

    def _chunks(self) -> Iterator[Program]:
        """A prefill in one piece, or in chunks with attention over the queries of each."""
        most = self._most_queries()
        for first, second in ((9, 1), (7, 5), (1, 8), (4, 4)):
            chunks = []
            for length in (first, second, 3):
                chunks += [Step("append", self._rows(length)), Step("attend", (min(length, most),))]
            yield (*chunks, Step("append", self._rows(1)), Step("attend", (1,)))

    def _borders(self) -> Iterator[Program]:
        one, look = Step("append", self._rows(1)), Step("attend", (1,))
        for page in self.pages:
            for pages in (1, 2, 3):
                start = pages * page
                yield (Step("append", self._rows(start - 2, start - 1, start)), look, *(one, look) * 4)
            yield (Step("append", self._rows(page, 2 * page, page - 1)), look, Step("append", self._rows(page)),
                   Step("attend", (min(3, self._most_queries()),)))  # fmt: skip
        if self.window:
            yield (one, look) * (3 * self.window + 2)
            yield (Step("append", self._rows(3 * self.window, 1, self.window)), look, *(one, look) * 3)

    def _around(self, operation: str) -> Iterator[Program]:
        """The operation between appends, at and beside the borders of a page; afterwards the rows grow apart."""
        for page in self.pages:
            yield from self._around_page(operation, page, every=page == self.pages[0])

    def _around_page(self, operation: str, page: int, every: bool) -> Iterator[Program]:
        """`every`: also lengths that say nothing new where other pages are tried, too."""
        look, B = Step("attend", (1,)), self.sizes.B
        variants: dict[str, list[tuple[int, ...]]] = {
            "reorder": [(0,) * B, (*range(1, B), 0), (B - 1,) * B, (1, 1, *range(2, B))],
            "truncate": [self._rows(1), self._rows(0, 3, 1), self._rows(page, 0, 2)],
            "free": [self._rows(1), *([(1, 0, 0), (0, 1, 1)] if not self.equal else [])],
            "branch": [(0,) * (B + 2), (*range(B), *range(B)), tuple(row // 2 for row in range(2 * B)), (B - 1,), (2, 0)],
        }
        lengths = (page - 1, page, page + 1, page + page // 2, 2 * page + 1) if every else (page, page + 1, 2 * page)
        for numbers in variants[operation]:
            left = len(numbers)  # rows
            apart = (Step("append", self._rows(1, 2, 3, rows=left)), look,
                     Step("append", self._rows(page, 1, 2, rows=left)), look)  # fmt: skip
            for length in lengths:
                start = (Step("append", self._rows(length, length + 2, length - 1)), look, Step(operation, numbers))
                yield (*start, *apart)
                if every and operation == "branch":
                    again: tuple[int, ...] = (left - 1, *range(left))
                    yield (*start, look, Step(operation, again), Step("append", self._rows(1, 2, rows=left + 1)), look)
                    yield (Step("append", (length,)), Step(operation, (0,) * left), *apart)
                elif every:
                    yield (*start, look, Step(operation, numbers), *apart)
            yield (Step("append", self._rows(page)), look, Step(operation, numbers), *apart)
            if operation in ("truncate", "free") and every:
                yield from self._again(operation, numbers)

    def _again(self, operation: str, numbers: tuple[int, ...]) -> Iterator[Program]:
        """Rows come back to the lengths that they had, with other values, at once and in another order than they left."""
        page, look, few = self.pages[0], Step("attend", (1,)), Step("attend", (min(3, self._most_queries()),))
        for length in (2, page, page + 2):
            start: Program = (Step("append", self._rows(length, length + page, 1)), few, Step(operation, numbers), few)
            lost = tuple(self._lost(operation, number, had) for number, had in zip(numbers, start[0].numbers, strict=True))
            yield (*start, Step("append", lost), few)
            yield (*start[:-1], Step("append", lost), few)
            if not self.equal:
                for row in (*range(1, self.sizes.B), 0):
                    more = tuple(page + 1 if number == row else 0 for number in range(self.sizes.B))
                    start = (*start, Step("append", more), look)
                yield start

    @staticmethod
    def _lost(operation: str, number: int, had: int) -> int:
        return min(number, had) if operation == "truncate" else had * number

    def _drawn(self, count: int) -> Iterator[Program]:
        draw = Random(self.seed)
        for _ in range(count):
            page = draw.choice([page for page in self.pages if page <= 64] or self.pages[:1])
            page = min(page, 4 * self.window) if self.window else page
            yield drawn_program(draw, self.sizes, self.operations, page, self.equal, self._most_queries())

    def _most_queries(self) -> int:
        """A ring may drop what more queries at once would see."""
        return 1 if self.window else 9


def _positions(name: str, cache: Any, attribute: str) -> int:
    """An optional attribute that is a number of positions; 0 without it. Raises InputError for anything else."""
    positions = getattr(cache, attribute, None)
    if positions is None:
        return 0
    if isinstance(positions, bool) or not isinstance(positions, int) or positions < 2:
        message = f"--cache: `{attribute}` of `{name}` is {positions!r}"
        raise InputError(Diagnostic("TFK094", message, "give a whole number of positions, 2 or more, or leave it out"))
    return positions


SUMMARIES = {
    "steps": "one position after another",
    "one row": "a batch of one row",
    "prefill and chunks": "many positions at once, in one piece and in chunks",
    "borders of pages": "lengths at, before and behind the borders of pages, and of the window",
    "reorder": "rows are exchanged and doubled, and then grow apart",
    "truncate": "the last positions are taken back, and others follow",
    "free": "rows are emptied, and their memory serves others",
    "branch": "a row is continued several times, others are dropped, and then rows grow apart",
    "two caches": "two caches in turn, each with its own contents",
    "drawn programs": "drawn programs of all operations",
    UNUSUAL: "many positions, rows, heads, features and queries",
    NEAR: "sizes near the numbers of the source, and behind them",
}


def _shorter(program: Program) -> Iterator[Program]:
    """Shorter programs, the shortest first: parts left out, and positions appended at once."""
    changes = [step for step in program[:-1] if step.operation != "attend"]
    if len(changes) < len(program) - 1:
        yield (*_joined(changes), program[-1])
        yield (*changes, program[-1])
    length = len(program) // 2
    while length:
        for end in range(len(program), length - 1, -length):
            yield program[: end - length] + program[end:]
        length //= 2
    for at, (step, after) in enumerate(pairwise(program)):
        if step.operation == after.operation == "append":
            sums = tuple(map(add, step.numbers, after.numbers))
            yield (*program[:at], Step("append", sums), *program[at + 2 :])


def _joined(steps: Iterable[Step]) -> Iterator[Step]:
    for operation, same in groupby(steps, lambda step: step.operation):
        if operation == "append":
            yield Step(operation, tuple(map(sum, zip(*(step.numbers for step in same), strict=True))))
        else:
            yield from same


def _listed(program: Program) -> str:
    return "\n".join(f"{at}. {step}" for at, step in enumerate(program, 1))
