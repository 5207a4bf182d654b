"""Every metamorphic relation in every dtype, on drawn cases that it applies to."""

from __future__ import annotations

from ..attention.case import Case
from ..attention.evaluated import Evaluated
from ..attention.strategies import cases
from ..finding import Violation, renamed
from ..raised import format_exception
from ..relations import RELATIONS, Relation, fit
from ..relations.call_parts import deterministic_if_declared
from ..search import search
from .runner import Run, Tally

ATTEMPTS = 4
"""How often cases are drawn anew, each time more, for a relation that few of them fit."""


def check_relations(run: Run, gradients: bool, turn: int, examples: int) -> None:
    """One round: so many examples of every relation, in every dtype; a slow one gets a single example in the first round."""
    for number, relation in enumerate(RELATIONS):
        for dtype in run.dtypes[:1] if relation.slow and turn == 0 else run.dtypes:
            if run.over:
                return
            wanted = 1 + turn if relation.slow else examples
            _relation(run, relation, dtype, gradients, wanted, turn * 1009 + number)


def _relation(run: Run, relation: Relation, dtype: str, gradients: bool, wanted: int, salt: int) -> None:
    name = f"{relation.number} {relation.name}"
    tally, reported = run.tally(name, relation.rule, relation.summary), run.reported_checks()
    void: set[str] = set()
    shrinking = False
    enough = tally.examples + wanted

    def evaluate(drawn: Case) -> None:
        nonlocal shrinking
        if relation.slow and tally.examples >= enough and not shrinking:
            return
        case = fit(relation, run.subject, drawn)
        if isinstance(case, str):
            void.add(case)
            return
        run.event(name, case)
        try:
            _evaluate(run, relation, name, case, tally, not shrinking)
        except Violation as violation:
            shrinking = shrinking or violation.check not in reported
            raise

    for attempt in range(ATTEMPTS):
        outcome = search(
            cases(run.subject, dtype, None, gradients), evaluate, examples=wanted * (attempt + 1) + 1,
            seed=run.seed * 6007 + salt * 101 + attempt, shrink_steps=run.steps_left(), limit=run.limit, reported=reported,
        )  # fmt: skip
        run.record(outcome, lambda case: relation.adapt(case, run.subject))
        if tally.examples >= enough or tally.finding is not None or run.over:
            break
    if not tally.examples and void:
        tally.void = "; ".join(sorted(void)[:2])


def _evaluate(run: Run, relation: Relation, name: str, case: Case, tally: Tally, counted: bool) -> None:
    with tally.example(counted):
        evaluated = Evaluated(run.subject, case)
        try:
            with deterministic_if_declared(evaluated):
                tally.saw(relation.run(evaluated), counted)
        except Violation as violation:
            raise renamed(violation, name) from violation
        except (RuntimeError, IndexError, ValueError, TypeError) as reason:  # a result of the wrong shape or type
            raise Violation(name, f"returned a result that cannot be compared: {format_exception(reason)}") from reason
