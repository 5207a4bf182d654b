"""The state of a run of the suite: counts of each check, and the findings so far."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from torch import Tensor

from tfkit import InputError

from ..attention.backend_under_test import BackendUnderTest, backend_under_test
from ..attention.case import Case
from ..attention.case_data import case_of
from ..attention.compare import leaves_of
from ..attention.evaluated import Evaluated
from ..differences import double
from ..finding import Finding, Inconclusive, OutOfTime, Violation, renamed
from ..limit import time_limit
from ..mutants import ATTENTION_MUTANTS, Mutant
from ..profile import Profile
from ..report import CheckResult, LedgerRow, Status
from ..search import Outcome
from ..snippets import backend_snippet
from .again import run_check
from .layers import LAYERS

SECONDS = 8.0
"""Processor time of a search, so that a busy machine gives the same names."""
WITNESSES = 6


def looks_like(subject: BackendUnderTest, case: Case, others: Sequence[Case] = (), named: Sequence[str] = ()) -> str:
    """The summary of the mutant that gives the same, or nothing. A small case alone says little: the one is named that gives
    the same on most of `others`, larger cases that failed, and on half of them at least; among equals one of
    `named`, what earlier findings of the same run look like."""
    same = list(_alike(subject, case, ATTENTION_MUTANTS))
    tried = [other for other in others[:: max(1, len(others) // WITNESSES)] if other != case][:WITNESSES]
    agreed = Counter({mutant.name: 0 for mutant in same})
    for other in tried if same else ():
        agreed.update(mutant.name for mutant in _alike(subject, other, same))
    best = max(same, key=lambda mutant: (agreed[mutant.name], mutant.summary in named), default=None)
    if best is None or 2 * agreed[best.name] < len(tried):
        return ""
    return best.summary


def explains(summary: str, finding: Finding, device: str) -> bool:
    """Whether a mutant fails a finding's check on the finding's case.

    Args:
        summary: of the mutant.
        finding: a finding. One without a case, and one of a relation without a wrong number, such as a declaration that is too
            modest, says nothing about results: it counts as explained.
        device: where the run was.

    Returns:
        False if the mutant passes, so that something else is wrong too.
    """
    [mutant] = [candidate for candidate in ATTENTION_MUTANTS if candidate.summary == summary]
    if not finding.case or not (finding.got is not None or finding.check in {layer.name for layer in LAYERS}):
        return True
    subject = backend_under_test(mutant.entry, device=device, attend=mutant.fresh())
    try:
        run_check(subject, case_of(finding.case), finding.check)
    except Violation:
        return True
    except (Inconclusive, InputError):
        pass
    return False


def _alike(subject: BackendUnderTest, case: Case, mutants: Iterable[Mutant]) -> Iterator[Mutant]:
    """The mutants that give on this case what the backend gives, and not what is right."""
    evaluated, started = Evaluated(subject, case), time.process_time()
    try:
        mine, allowed, right = _outcome(evaluated), _allowed(evaluated), _right(evaluated)
    except (Violation, Inconclusive):
        return
    for mutant in mutants:
        if time.process_time() - started > SECONDS:
            return
        other = Evaluated(backend_under_test(mutant.entry, device=subject.device, attend=mutant.fresh()), case)
        try:
            theirs = _outcome(other)
        except (Violation, Inconclusive):
            continue
        if _same(mine, theirs, allowed) and not _same(theirs, right, allowed):
            yield mutant


def _outcome(evaluated: Evaluated) -> dict[str, Tensor]:
    results = {"output": evaluated.output.output}
    if evaluated.output.lse is not None and evaluated.case.lse:
        results["lse"] = evaluated.output.lse
    if any(leaf.requires_grad for leaf in leaves_of(evaluated.inputs).values()):
        results |= evaluated.gradients
    return {name: double(tensor) for name, tensor in results.items()}


def _allowed(evaluated: Evaluated) -> dict[str, Tensor]:
    bounds = evaluated.bounds
    return {"output": bounds.output, "lse": bounds.lse, **bounds.gradients}


def _right(evaluated: Evaluated) -> dict[str, Tensor]:
    exact = evaluated.reference
    return {"output": exact.output, "lse": exact.lse, **exact.gradients}


def _same(one: dict[str, Tensor], other: dict[str, Tensor], allowed: dict[str, Tensor]) -> bool:
    for name in one.keys() & other.keys():
        if one[name].shape != other[name].shape:
            return False
        close = (one[name] == other[name]) | ((one[name] - other[name]).abs() <= 2 * allowed[name])
        if not bool(close.all()):
            return False
    return True


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
    declared_dtypes: tuple[str, ...] = ()
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
            finding = self.finding_of(violation, case)
            if self.shrink_steps and not self.over and len(self.reported_checks()) < 3:
                self.event("looking for a mutant with the same result", case)
                named = [other.finding.looks_like for other in self.tallies.values() if other.finding is not None]
                alike = looks_like(self.subject, case, [adapt(other) for other in outcome.failures], named)
                finding = replace(finding, looks_like=alike)
            if not outcome.stable:
                finding = replace(finding, message=f"{finding.message} (the same case does not always fail)")
            tally.finding = finding

    def finding_of(self, violation: Violation, case: Case | None) -> Finding:
        tally, data = self.tallies.get(violation.check), {} if case is None else case.as_data()
        snippet = backend_snippet(self.subject.name, data, self.subject.device, violation.check) if data else ""
        rule = tally.rule if tally else ""
        return Finding(violation.check, rule, violation.message, **violation.numbers, case=data, snippet=snippet)

    def results(self) -> tuple[tuple[CheckResult, ...], tuple[Finding, ...]]:
        """Every check's result, and the findings in the order of the checks. A finding keeps the name of a mutant only if that
        mutant explains all the others too."""
        findings = tuple(
            replace(tally.finding, failed=tally.failed, examples=max(tally.examples, tally.failed))
            for tally in self.tallies.values()
            if tally.finding is not None
        )
        names = {finding.looks_like for finding in findings} - {""}
        not_all = {name for name in names if not all(explains(name, finding, self.subject.device) for finding in findings)}
        findings = tuple(replace(finding, looks_like="") if finding.looks_like in not_all else finding for finding in findings)
        return tuple(tally.result(name) for name, tally in self.tallies.items()), findings
