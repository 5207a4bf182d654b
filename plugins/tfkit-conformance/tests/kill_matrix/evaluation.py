"""The suite judged by itself: every seeded fault must be seen, no correct implementation alarmed.

A suite that has never been seen to fail proves nothing. Faults are seeded one at a time into a kernel that is right, and each
must be found under every seed; the zoo of correct kernels, each honest about where it rounds, must pass under every seed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator

from tfkit_conformance.attention.subject import subject_of
from tfkit_conformance.mutants import ATTENTION_MUTANTS, Mutant
from tfkit_conformance.suite.conformance import check_backend

from .correct_kernels import CORRECT_KERNELS, CorrectKernel
from .report import CorrectKernelRow, MutantRow, SelftestReport

Progress = Callable[[str], None]


def selftest(
    profile: str = "standard",
    seeds: tuple[int, ...] = (0, 1, 2),
    families: Iterable[str] | None = None,
    progress: Progress = lambda line: None,
    correct_kernels: bool = True,
) -> SelftestReport:
    """Judge the suite: attention faults and the zoo by `check_backend`, those of other slots by `check_part`, those of whole
    models by `verify`. `families` restricts the faults; `progress` hears one line per fault."""
    started, wanted = time.perf_counter(), None if families is None else set(families)
    rows = []
    for mutant in ATTENTION_MUTANTS:
        if wanted is None or mutant.family in wanted:
            rows.append(evaluate_mutant(mutant, profile, seeds))
            progress(_told(rows[-1], seeds))
    for other in _other_rows(profile, seeds, wanted):
        rows.append(other)
        progress(_told(other, seeds))
    kernels = []
    if correct_kernels and wanted is None:
        for kernel_ in CORRECT_KERNELS:
            kernels.append(evaluate_correct_kernel(kernel_, profile, seeds))
            progress(f"{kernel_.name}: {len(kernels[-1].alarms)} alarms in {kernels[-1].examples} judgements")
    return SelftestReport(profile, seeds, tuple(rows), tuple(kernels), round(time.perf_counter() - started, 1))


def evaluate_mutant(mutant: Mutant, profile: str, seeds: tuple[int, ...]) -> MutantRow:
    """Under each seed the first check that sees the fault; dtype by dtype, half types first, where rounding hides most."""
    started = time.perf_counter()
    seen = tuple(_first_seen(mutant, profile, seed) for seed in seeds)
    return MutantRow(mutant.name, mutant.family, mutant.summary, seen, round(time.perf_counter() - started, 2))


def evaluate_correct_kernel(kernel_: CorrectKernel, profile: str, seeds: tuple[int, ...]) -> CorrectKernelRow:
    """A correct implementation under each seed, in every dtype that it declares."""
    started, alarms, examples, worst, undecided = time.perf_counter(), [], 0, 0.0, 0
    subject = subject_of(kernel_.entry, attend=kernel_.attend, tf32=kernel_.tf32)
    for seed in seeds:
        report = check_backend(subject, profile=profile, seed=seed)
        alarms += [f"seed {seed}: {finding.check}: {finding.message}" for finding in report.findings]
        examples += sum(check.examples for check in report.checks)
        worst = max([worst, *(check.worst or 0.0 for check in report.checks)])
        undecided += sum(check.status == "inconclusive" for check in report.checks)
    return CorrectKernelRow(
        kernel_.name, kernel_.summary, examples, tuple(alarms), worst, undecided, round(time.perf_counter() - started, 2)
    )


def _first_seen(mutant: Mutant, profile: str, seed: int) -> str:
    subject = subject_of(mutant.entry, attend=mutant.fresh())
    report = check_backend(subject, profile=profile, seed=seed, stop_at_first=True)
    return report.findings[0].check if report.findings else ""


def _other_rows(profile: str, seeds: tuple[int, ...], families: set[str] | None) -> Iterator[MutantRow]:
    from .laws.evaluation import selftest_laws
    from .models.evaluation import selftest_models
    from .models.mutants import model_mutants

    yield from selftest_laws(profile, seeds, families)
    for mutant in model_mutants():
        if families is None or mutant.family in families:
            started = time.perf_counter()
            seen = tuple(", ".join(row.by[:1]) for row in selftest_models(seeds, [mutant]) if row.mutant == mutant.name)
            yield MutantRow(mutant.name, mutant.family, mutant.summary, seen, round(time.perf_counter() - started, 2))


def _told(row: MutantRow, seeds: tuple[int, ...]) -> str:
    missed = [str(seed) for seed, check in zip(seeds, row.seen_by, strict=True) if not check]
    if missed:
        return f"SURVIVED {row.family}: {row.name} ({row.summary}), under seed {', '.join(missed)}"
    return f"killed {row.family}: {row.name}, by {', '.join(dict.fromkeys(row.seen_by))}"
