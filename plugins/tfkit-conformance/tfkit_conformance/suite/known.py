"""Known failures: stored cases that a backend's author knows to fail. They must still fail, and what they cover is not
evaluated anew; a report with one is never conformant."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tfkit import InputError
from tfkit.plugin import AttentionBackend

from ..attention.backend_under_test import BackendUnderTest
from ..attention.case import Case
from ..attention.case_data import case_of
from ..attention.cells import plan_of
from ..finding import Finding, Inconclusive, Violation
from ..limit import time_limit


def is_known(entry: AttentionBackend, check: str, case: Case) -> bool:
    """Whether a drawn case has all features of a known failure of this check."""
    return any(known.check == check and _covers(known, case) for known in entry.known_failures)


def check_known(
    tally: Callable[[str, str, str], Any],
    finding: Callable[[Violation, Case | None], Finding],
    subject: BackendUnderTest,
    limit: float,
) -> None:
    """Run every stored case again: one that passes is a finding, and so is one whose check does not exist."""
    from .again import run_check

    for known in subject.entry.known_failures:
        kept = tally(f"known: {known.check}", "", known.reason + (f" ({known.issue})" if known.issue else ""))
        kept.known += 1
        try:
            case = case_of(known.case)
            with time_limit(limit):
                run_check(subject, case, known.check)
        except InputError as wrong:
            kept.failed += 1
            told = "; ".join(diagnostic.message for diagnostic in wrong.diagnostics)
            kept.finding = finding(Violation(known.check, f"a known failure that cannot be tried: {told}"), None)
            continue
        except Violation:
            if not _covers(known, case):
                message = f"the stored case of the known failure in {known.check} lacks the features in its `where`"
                kept.finding = finding(Violation(known.check, message), case)
            continue
        except Inconclusive:
            pass
        kept.failed += 1
        message = f"the known failure in {known.check} does not fail any more: remove it from `known_failures`"
        kept.finding = finding(Violation(known.check, message), case)


def _covers(known: Any, case: Case) -> bool:
    plan = plan_of(case)
    for key, value in known.where.items():
        if key not in plan:
            return False
        if key == "terms":
            if not set(value) <= plan["terms"]:
                return False
        elif plan[key] != value:
            return False
    return True
