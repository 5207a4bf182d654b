"""The state of a run of the suite: counts of each check, and the findings so far."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from ..attention.backend_under_test import BackendUnderTest
from ..attention.case import Case
from ..finding import Finding, Inconclusive, OutOfTime, Violation, renamed
from ..limit import time_limit
from ..profile import Profile
from ..report import CheckResult, LedgerRow, Status
from ..search import Outcome
from ..snippets import backend_snippet
from .looks_like import explains, looks_like

Event = Callable[[str, Case | None], None]


@dataclass
class Tally:
    """One check while it runs."""

    rule: str
    summary: str
    examples: int = 0
    failed: int = 0
    inconclusive: int = 0
    worst: float | None = None
    seconds: float = 0.0
    note: str = ""
    finding: Finding | None = None
    void: str = ""

    def saw(self, share: float | None, counted: bool) -> None:
        """Keeps the largest error of the `counted` examples. Cases that are tried to shrink another check's failure do not
        count: this check could fail on one, and its row would say "passed" with an error above the bound."""
        if counted and share is not None:
            self.worst = max(share, self.worst or 0.0)

    @contextmanager
    def example(self, counted: bool) -> Iterator[None]:
        """Counts an example with its time and how it ends."""
        started = time.perf_counter()
        self.examples += counted
        try:
            yield
        except Inconclusive:
            self.inconclusive += counted
            raise
        except Violation as violation:
            self.failed += counted
            self.saw(violation.share, counted)
            raise
        finally:
            self.seconds += time.perf_counter() - started

    def result(self, name: str) -> CheckResult:
        status: Status = "passed"
        if self.finding is not None:
            status = "failed"
        elif not self.examples:
            status = "not applicable" if self.void else "not run"
        elif self.inconclusive == self.examples:
            status = "inconclusive"
        note = self.note or ("" if self.examples else self.void)
        if self.inconclusive:
            note = "; ".join([*([note] if note else []), f"{self.inconclusive} inconclusive"])
        return CheckResult(name, self.rule, self.summary, status, self.examples, self.worst, round(self.seconds, 3), note)


FEW_STEPS = 25
"""Steps for shrinking a finding after the first three."""


@dataclass
class Run:
    """One run of the suite: what it was asked for, and what it has found so far. `event` is called before every
    example, so that the parent process knows the last one."""

    subject: BackendUnderTest
    profile: Profile
    seed: int
    dtypes: tuple[str, ...]
    stop_at_first: bool
    limit: float
    shrink_steps: int
    event: Event
    tallies: dict[str, Tally] = field(default_factory=dict)
    ledger: dict[tuple[str, str], LedgerRow] = field(default_factory=dict)
    grades: dict[str, str] = field(default_factory=dict)
    hung: bool = False

    @property
    def failed(self) -> bool:
        return any(tally.finding is not None for tally in self.tallies.values())

    @property
    def over(self) -> bool:
        return self.hung or (self.stop_at_first and self.failed)

    def tally(self, name: str, rule: str, summary: str) -> Tally:
        return self.tallies.setdefault(name, Tally(rule, summary))

    def once(self, name: str, rule: str, summary: str, evaluate: Callable[[str, Tally], None]) -> None:
        """A check that draws no cases: `evaluate(dtype, tally)` for every dtype."""
        tally = self.tally(name, rule, summary)
        for dtype in self.dtypes:
            if self.over:
                return
            self.event(f"{name} {dtype}", None)
            started = time.perf_counter()
            try:
                with time_limit(self.limit):
                    evaluate(dtype, tally)
            except Violation as violation:
                self.hung = self.hung or isinstance(violation, OutOfTime)
                tally.failed += 1
                tally.finding = tally.finding or self.finding_of(renamed(violation, name), None)
            except Inconclusive:
                tally.inconclusive += 1
            finally:
                tally.seconds += time.perf_counter() - started

    def reported_checks(self) -> frozenset[str]:
        return frozenset(name for name, tally in self.tallies.items() if tally.finding is not None)

    def steps_left(self) -> int:
        """Steps for shrinking: enough for the first findings, few for what most likely has the same cause."""
        if self.stop_at_first:
            return 0
        return self.shrink_steps if len(self.reported_checks()) < 3 else min(self.shrink_steps, FEW_STEPS)

    def record(self, outcome: Outcome, adapt: Callable[[Case], Case] = lambda case: case) -> None:
        violation = outcome.violation
        if violation is None:
            return
        self.hung = self.hung or isinstance(violation, OutOfTime)
        tally = self.tallies.get(violation.check) or self.tally(violation.check, "", "")
        if tally.finding is None:
            case = adapt(outcome.case)
            found = self.finding_of(violation, case)
            if self.shrink_steps and not self.over and len(self.reported_checks()) < 3:
                self.event("looking for a mutant with the same result", case)
                named = [other.finding.looks_like for other in self.tallies.values() if other.finding is not None]
                alike = looks_like(self.subject, case, [adapt(other) for other in outcome.failures], named)
                found = replace(found, looks_like=alike)
            if not outcome.stable:
                found = replace(found, message=f"{found.message} (the same case does not always fail)")
            tally.finding = found

    def finding_of(self, violation: Violation, case: Case | None) -> Finding:
        tally, data = self.tallies.get(violation.check), {} if case is None else case.as_data()
        snippet = backend_snippet(self.subject.name, data, self.subject.device, violation.check) if data else ""
        rule = tally.rule if tally else ""
        return Finding(violation.check, rule, violation.message, **violation.numbers, case=data, snippet=snippet)

    def results(self) -> tuple[tuple[CheckResult, ...], tuple[Finding, ...]]:
        """Every check's result, and the findings in the order of the checks. A finding keeps the name of a mutant only if that
        mutant explains all the others too."""
        found = tuple(
            replace(tally.finding, failed=tally.failed, examples=max(tally.examples, tally.failed))
            for tally in self.tallies.values()
            if tally.finding is not None
        )
        names = {each.looks_like for each in found} - {""}
        not_all = {name for name in names if not all(explains(name, each, self.subject.device) for each in found)}
        found = tuple(replace(each, looks_like="") if each.looks_like in not_all else each for each in found)
        return tuple(tally.result(name) for name, tally in self.tallies.items()), found
