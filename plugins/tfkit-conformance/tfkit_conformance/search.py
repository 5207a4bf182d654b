"""Drawing cases with Hypothesis, and shrinking the first one that fails, in a bounded number of steps.

    search(strategy, evaluate, examples=25, seed=0)  ->  how many ran, how many failed, and the smallest failure

Hypothesis draws and shrinks. Shrinking evaluates at most `shrink_steps` cases; after that only a case that has failed before
still fails, so that Hypothesis settles on it. Steps are counted, not seconds: a slow or busy machine finds the same case. One
example may take `limit` seconds before it counts as hanging, and a case that hangs is not shrunk, since every step would hang
as well. (Hypothesis itself gives up shrinking after five minutes; only cases of more than a second each come near that.)
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from hypothesis import HealthCheck, Phase, Verbosity, given, seed as seeded, settings
from hypothesis.errors import Flaky, Unsatisfiable
from hypothesis.strategies import SearchStrategy

from .finding import Inconclusive, OutOfTime, Violation
from .limit import time_limit

SHRINK_STEPS = 200
"""Cases evaluated while shrinking. The cases of attention settle within 50 to 150."""


@dataclass
class Outcome:
    """The result of a search. `failures` are all cases that failed, from the first to the smallest, `case` is the smallest and
    `violation` its violation; `stable` is False where the same case did not fail again."""

    examples: int = 0
    inconclusive: list[str] = field(default_factory=list)
    failures: list[Any] = field(default_factory=list)
    case: Any = None
    violation: Violation | None = None
    stable: bool = True

    @property
    def first(self) -> Any:
        """The first case that failed, or None."""
        return self.failures[0] if self.failures else None


class _Failed(Exception):
    """Raised at one place, so that Hypothesis takes all failures of a search for the same one."""


def search(
    strategy: SearchStrategy[Any],
    evaluate: Callable[[Any], None],
    *,
    examples: int,
    seed: int,
    shrink_steps: int = SHRINK_STEPS,
    limit: float = 60.0,
    reported: frozenset[str] = frozenset(),
) -> Outcome:
    """Evaluate drawn cases. `evaluate` raises Violation or Inconclusive, or returns. Violations of a check in `reported` are
    known already: they are not shrunk, and the search goes on, but for one that is out of time. `shrink_steps` 0 leaves out
    shrinking."""
    outcome = Outcome()
    failures: dict[Any, Violation] = {}
    steps = 0

    def body(case: Any) -> None:
        nonlocal steps
        if failures and (steps >= shrink_steps or isinstance(outcome.violation, OutOfTime)):
            violation = failures.get(case)
        else:
            steps += bool(failures)
            outcome.examples += not failures
            violation = _evaluated(evaluate, case, limit, outcome, shrinking=bool(failures))
            if failures and violation is not None and violation.check != next(iter(failures.values())).check:
                violation = None  # another error: it is reported once this one is fixed
        if violation is None or (violation.check in reported and not isinstance(violation, OutOfTime)):
            return
        if case not in failures:
            outcome.failures.append(case)
        failures[case] = violation
        outcome.case, outcome.violation = case, violation
        raise _Failed

    phases = [Phase.generate, Phase.shrink] if shrink_steps else [Phase.generate]
    chosen = settings(
        max_examples=examples, database=None, deadline=None, derandomize=False, print_blob=False, phases=phases,
        verbosity=Verbosity.quiet, report_multiple_bugs=False, suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    try:
        chosen(seeded(seed)(given(strategy)(body)))()
    except (_Failed, Unsatisfiable):
        pass
    except Flaky:
        outcome.stable = False
    return outcome


def _evaluated(evaluate: Callable[[Any], None], case: Any, limit: float, outcome: Outcome, shrinking: bool) -> Violation | None:
    try:
        with time_limit(limit):
            evaluate(case)
    except Violation as violation:
        return violation
    except Inconclusive as reason:
        if not shrinking:
            outcome.inconclusive.append(str(reason))
    return None
