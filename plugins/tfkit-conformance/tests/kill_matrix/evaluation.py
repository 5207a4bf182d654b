"""Runs the suite on mutants and on correct kernels: every mutant must be killed, no correct kernel may raise an alarm.

Each mutant is a correct kernel with one error and must be killed under every seed. Each correct kernel declares where it rounds
and must pass under every seed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from tfkit import load_catalogue
from tfkit_conformance.attention.backend_under_test import backend_under_test
from tfkit_conformance.mutants import ATTENTION_MUTANTS, Mutant
from tfkit_conformance.suite.conformance import check_backend

from .correct_kernels import CORRECT_KERNELS, CorrectKernel
from .report import CorrectKernelRow, KillMatrixReport, MutantRow

Progress = Callable[[str], None]


def run_kill_matrix(
    profile: str = "standard",
    seeds: tuple[int, ...] = (0, 1, 2),
    families: Iterable[str] | None = None,
    progress: Progress = lambda line: None,
    correct_kernels: bool = True,
) -> KillMatrixReport:
    """Evaluates the suite: attention mutants and correct kernels by `check_backend`, mutants of other slots by `check_part`, of
    whole models by `verify`. `families` restricts the mutants; `progress` is called with one line for each mutant."""
    started, wanted = time.perf_counter(), None if families is None else set(families)
    rows = []
    for mutant in ATTENTION_MUTANTS:
        if wanted is None or mutant.family in wanted:
            rows.append(evaluate_mutant(mutant, profile, seeds))
            progress(_kill_line(rows[-1], seeds))
    for other in _other_rows(profile, seeds, wanted):
        rows.append(other)
        progress(_kill_line(other, seeds))
    kernels = []
    if correct_kernels and wanted is None:
        for kernel in CORRECT_KERNELS:
            kernels.append(evaluate_correct_kernel(kernel, profile, seeds))
            progress(f"{kernel.name}: {len(kernels[-1].alarms)} alarms in {kernels[-1].examples} evaluations")
    return KillMatrixReport(profile, seeds, tuple(rows), tuple(kernels), round(time.perf_counter() - started, 1))


def evaluate_mutant(mutant: Mutant, profile: str, seeds: tuple[int, ...]) -> MutantRow:
    """The first check that kills the mutant under each seed."""
    started = time.perf_counter()
    seen = tuple(_first_kill(mutant, profile, seed) for seed in seeds)
    return MutantRow(mutant.name, mutant.family, mutant.summary, seen, round(time.perf_counter() - started, 2))


def evaluate_correct_kernel(kernel: CorrectKernel, profile: str, seeds: tuple[int, ...]) -> CorrectKernelRow:
    """A correct implementation under each seed, in every dtype that it declares."""
    started, alarms, examples, worst, undecided = time.perf_counter(), [], 0, 0.0, 0
    subject = backend_under_test(kernel.entry, attend=kernel.attend, tf32=kernel.tf32)
    for seed in seeds:
        report = check_backend(subject, profile=profile, seed=seed)
        alarms += [f"seed {seed}: {finding.check}: {finding.message}" for finding in report.findings]
        examples += sum(check.examples for check in report.checks)
        worst = max([worst, *(check.worst or 0.0 for check in report.checks)])
        undecided += sum(check.status == "inconclusive" for check in report.checks)
    return CorrectKernelRow(
        kernel.name, kernel.summary, examples, tuple(alarms), worst, undecided, round(time.perf_counter() - started, 2)
    )


def _first_kill(mutant: Mutant, profile: str, seed: int) -> str:
    subject = backend_under_test(mutant.entry, attend=mutant.fresh())
    report = check_backend(subject, profile=profile, seed=seed, stop_at_first=True)
    return report.findings[0].check if report.findings else ""


def _other_rows(profile: str, seeds: tuple[int, ...], families: set[str] | None) -> Iterator[MutantRow]:
    from .laws.evaluation import evaluate_law_mutants
    from .models.evaluation import killed_by
    from .models.mutants import model_mutants

    catalogue = load_catalogue()
    yield from evaluate_law_mutants(profile, seeds, families, catalogue)
    for mutant in model_mutants():
        if families is None or mutant.family in families:
            started = time.perf_counter()
            seen = tuple(killed_by(mutant, seed, catalogue) for seed in seeds)
            yield MutantRow(mutant.name, mutant.family, mutant.summary, seen, round(time.perf_counter() - started, 2))


def _kill_line(row: MutantRow, seeds: tuple[int, ...]) -> str:
    missed = [str(seed) for seed, check in zip(seeds, row.killed_by, strict=True) if not check]
    if missed:
        return f"SURVIVED {row.family}: {row.name} ({row.summary}), under seed {', '.join(missed)}"
    return f"killed {row.family}: {row.name}, by {', '.join(dict.fromkeys(row.killed_by))}"
