"""Choosing laws by name, and evaluating a law on drawn cases up to the first violation."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol, TypeVar

from tfkit import Diagnostic, InputError

from .finding import Finding, Violation
from .report import CheckResult, Status


class Shaped(Protocol):
    """A case that says its sizes in words."""

    @property
    def shape(self) -> str: ...


class Named(Protocol):
    """A law that has a name."""

    @property
    def name(self) -> str: ...


C = TypeVar("C", bound=Shaped)
L = TypeVar("L", bound=Named)


def chosen_laws(laws: Sequence[L], names: Iterable[str] | None) -> list[L]:
    """The laws that have one of the names, or all laws if no name is given.

    Raises:
        InputError: there is no such law.
    """
    known, asked = [law.name for law in laws], tuple(names or ())
    if unknown := [name for name in asked if name not in known]:
        raise InputError(Diagnostic("TFK094", f"there is no law `{unknown[0]}`", f"laws: {', '.join(known)}"))
    return [law for law in laws if not asked or law.name in asked]


def evaluated(
    name: str, rule: str, dtype: str, cases: Iterable[C], evaluate: Callable[[C], float | None]
) -> tuple[CheckResult, list[Finding]]:
    """The result of a law, and its violation if there is one.

    Args:
        name: of the law.
        rule: the law in words.
        dtype: in the report.
        cases: the cases; the first that breaks the law ends the check.
        evaluate: raises Violation, or returns the largest error over its bound.

    Returns:
        The result and at most one finding.
    """
    started, examples, worst, findings = time.perf_counter(), 0, None, list[Finding]()
    for case in cases:
        examples += 1
        try:
            share = evaluate(case)
            worst = share if worst is None or share is None else max(worst, share)
        except Violation as violation:
            findings = [Finding(name, dtype, violation.message, examples=examples, **violation.numbers)]
        except Exception as reason:  # whatever the author's function raises is the answer
            message = f"raised {type(reason).__name__}: {reason} ({case.shape})"
            findings = [Finding(name, dtype, message, examples=examples)]
        if findings:
            break
    status: Status = "failed" if findings else "passed"
    seconds = round(time.perf_counter() - started, 3)
    return CheckResult(name, dtype, rule, status, examples, worst, seconds), findings
