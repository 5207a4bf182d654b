"""The conformance suite of attention backends: everything that a declaration promises is tried and checked.

    declaration    it makes sense at all
    refusals       what is not declared is refused
    layers         every declared cell, dtype by dtype, by the layers of `tfkit_conformance.suite.layers`
    fixed calls    calls that draws seldom meet, `tfkit_conformance.suite.fixed_calls`
    relations      the metamorphic relations of `tfkit_conformance.relations`
    dropout        where it is declared
    grade          accuracy, as a grade

The ledger counts the examples of every cell, so that an untried cell does not pass.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch

from tfkit import Catalogue
from tfkit.plugin import AttentionBackend

from ..attention.backend_under_test import BackendUnderTest
from ..attention.case import DTYPES
from ..finding import Finding, Inconclusive, OutOfTime, Violation, renamed
from ..limit import time_limit
from ..profile import profile_of
from ..relations.call_parts import deterministic_algorithms
from ..report import ConformanceReport
from ..resolve import known_dtypes, resolve, versions, why_not_run
from ..search import SHRINK_STEPS, Outcome
from .call_maker import CHECK as GUIDED
from .declaration import check_refusals, nonsense, plain_case
from .fixed_calls import CHECK, SUMMARY, check_fixed_call, fixed_calls
from .grade import check_cells, check_grade, check_relations
from .guided_calls import SUMMARY as GUIDED_SUMMARY, Guided, guided_calls
from .layers import LAYERS
from .runner import Event, Run, Tally

QUICK = ("float32", "bfloat16")
"""The dtypes of the quick profile, where they are declared."""
SECONDS = {"quick": 36.0, "standard": 90.0, "deep": 600.0}
"""Processor time of the guided calls."""
SLOWER = 8
"""How many times as long as another one a long fixed call may take."""


def check_backend(
    backend: str | AttentionBackend | BackendUnderTest,
    *,
    profile: str = "standard",
    device: str = "cpu",
    dtypes: Iterable[str] | None = None,
    options: Any = None,
    seed: int = 0,
    catalogue: Catalogue | None = None,
    limit: float = 60.0,
    stop_at_first: bool = False,
    shrink_steps: int = SHRINK_STEPS,
    event: Event = lambda check, case: None,
    guided_first: bool = False,
) -> ConformanceReport:
    """Checks an attention backend against everything that it declares.

    Args:
        backend: a name of the catalogue, an entry, or a `BackendUnderTest` with a function of its own.
        profile: how many cases: "quick", "standard" or "deep".
        device: "cpu", "cuda" or "cuda:1"; a `BackendUnderTest` has its own.
        dtypes: only these; by default all that are declared, in the quick profile float32 and bfloat16 of them.
        options: options of the backend, as a mapping or as its options model.
        seed: of the drawn cases.
        catalogue: where names are looked up; by default all that is installed.
        limit: seconds that one example may take.
        stop_at_first: end the run at the first finding, and do not shrink it.
        shrink_steps: the largest number of cases that are tried to make a failing case small.
        event: called with the check and the case before each example.
        guided_first: the guided calls before other checks: they find most faults soonest, others with simpler words.

    Returns:
        The report: verdict, checks, findings with stored cases, and the ledger of declared cells.

    Raises:
        InputError: a backend, profile, device or dtype does not exist.
        PluginError: the functions of the backend cannot be imported.
        What the backend does wrong is in the report.

    Reference:
        The rules A1 to A12 of the attention contract (`tfkit explain A1`).
    """
    chosen = profile_of(profile)
    subject, distribution = resolve(backend, options, device, catalogue)
    started = time.perf_counter()
    asked = None if dtypes is None else known_dtypes(dtypes)
    declared = [dtype for dtype in DTYPES if dtype in subject.capabilities.dtypes]
    usual = [dtype for dtype in QUICK if dtype in declared] if profile == "quick" else []
    wanted = tuple(dtype for dtype in declared if dtype in (usual or declared if asked is None else asked))
    run = Run(subject, chosen, seed, wanted, stop_at_first, limit, shrink_steps, event, () if asked else tuple(declared))
    _run_all(run, guided_first)
    for dtype in sorted((asked or frozenset()) - set(declared)):
        tally = run.tally(f"layers in {dtype}", "", f"{dtype} was asked for")
        tally.note = f"{dtype} is not declared"
    checks, findings = run.results()
    return ConformanceReport(
        "backend", subject.name, distribution, subject.options.model_dump(), subject.device, wanted, profile, seed,
        versions(subject.device), checks, findings, tuple(run.ledger.values()), run.grades,
        round(time.perf_counter() - started, 2),
    )  # fmt: skip


def _run_all(run: Run, guided_first: bool) -> None:
    subject = run.subject
    tally = run.tally("declaration", "A3", "the declaration is consistent")
    tally.examples = 1
    wrong = list(nonsense(subject.capabilities))
    if wrong:
        tally.failed = len(wrong)
        tally.finding = Finding("declaration", "A3", "; ".join(wrong))
        return
    reason = why_not_run(subject)
    for layer in LAYERS:  # said to be "not run" until they are: where every call is refused, nothing has passed
        run.tally(layer.name, layer.rule, layer.summary).note = reason
    if reason:
        return
    gradients = subject.capabilities.backward and _backward_here(subject, run.dtypes)
    subject.note_lines()
    with _settings_kept():
        run.once("refusals", "A3", "undeclared features are refused", lambda dtype, tally: _refusals(run, dtype, tally))
        if guided_first:
            _guided_calls(run)
        for turn, size in enumerate(run.profile.rounds):
            check_cells(run, gradients, turn, size.cell)
            if "contract" in run.reported_checks():
                note = "not evaluated: what breaks the contract cannot be compared"
                run.tally("relations", "", "metamorphic relations").note = note
                break
            if turn == 0:
                for dtype in run.declared_dtypes or run.dtypes:
                    _fixed_calls(run, dtype)
            check_relations(run, gradients, turn, size.relation)
            if turn == 0 and not guided_first:
                _guided_calls(run)
        if "contract" not in run.reported_checks():
            run.once("grade", "A8", "accuracy, as a grade", lambda dtype, tally: _grade(run, dtype, tally))
        if (guided := run.tallies.get(GUIDED)) and guided.examples:
            guided.note = "; ".join([guided.note] * bool(guided.note) + [subject.source.evidence()])


def _refusals(run: Run, dtype: str, tally: Tally) -> None:
    tally.examples += check_refusals(run.subject, dtype, run.event)
    tally.void = "everything is declared"


def _fixed_calls(run: Run, dtype: str) -> None:
    """Each call is an example with a time limit of its own.

    Long ones are left out after a slow one. The quick profile makes them in one dtype, and of the dtypes that it leaves out
    the calls of unusual numbers: only float16 or float64 shows some of their errors.
    """
    tally, slowest = run.tally(CHECK, "A2", SUMMARY), 0.0
    for fixed in fixed_calls(run.subject, dtype, numbers_only=dtype not in run.dtypes):
        if run.over or tally.finding is not None:
            return
        if fixed.long and slowest > run.limit / SLOWER:
            tally.note = f"long calls are left out, because another one took {slowest:.0f} s"
            continue
        if fixed.long and run.profile.name == "quick" and dtype != run.dtypes[0]:
            continue
        run.event(f"{CHECK} {dtype}", None)
        started = time.perf_counter()
        try:
            with tally.example(True), time_limit(run.limit):
                tally.saw(check_fixed_call(run.subject, fixed), True)
        except Violation as violation:
            run.hung = run.hung or isinstance(violation, OutOfTime)
            tally.finding = run.finding_of(renamed(violation, CHECK), None)
        except Inconclusive:
            pass  # counted by the tally
        slowest = max(slowest, time.perf_counter() - started)


def _guided_calls(run: Run) -> None:
    """Every declared dtype gets its part of the calls, in the quick profile too. A slow kernel, such as one that compiles for
    each shape, gets as many as fit its time."""
    tally, guided = run.tally(GUIDED, "A2", GUIDED_SUMMARY), Guided(run.subject)
    if run.failed:
        tally.note = "not evaluated: another check failed before"
        return
    started = time.process_time()
    for words, case in guided_calls(run.subject, run.declared_dtypes or run.dtypes, run.profile.name, run.seed):
        if run.over or tally.finding is not None:
            return
        if time.process_time() - started > SECONDS[run.profile.name]:
            tally.note = f"{tally.examples:,} calls took {SECONDS[run.profile.name]:.0f} s; the others are left out"
            return
        run.event(GUIDED, case)
        outcome = Outcome(case=case)
        try:
            with tally.example(True), time_limit(run.limit):
                tally.saw(guided.check(case), True)
        except Violation as violation:
            outcome.violation = type(violation)(GUIDED, f"with {words}: {violation.message}", **violation.numbers)
            outcome.failures = [case]
            run.record(outcome)
        except Inconclusive:
            pass  # counted by the tally


def _grade(run: Run, dtype: str, tally: Tally) -> None:
    try:
        letter, ratio = check_grade(run.subject, dtype, run.seed)
    except LookupError as reason:
        promised = run.subject.capabilities.numerics.grade is not None
        tally.note, tally.void = (str(reason), "") if promised else ("", str(reason))
        return
    tally.examples += 1
    run.grades[dtype] = f"{letter} ({ratio:.2f})"


def _backward_here(subject: BackendUnderTest, dtypes: tuple[str, ...]) -> bool:
    """Whether any call with gradients is accepted on this device."""
    return any(subject.accepts(replace(plain_case(subject, dtype), gradients=True).request(subject.device)) for dtype in dtypes)


@contextmanager
def _settings_kept() -> Iterator[None]:
    """torch's process-wide settings as the suite needs them, and afterwards as they were."""
    state = torch.get_rng_state()
    torch.manual_seed(0)
    try:
        with deterministic_algorithms(False, False):
            yield
    finally:
        torch.set_rng_state(state)
