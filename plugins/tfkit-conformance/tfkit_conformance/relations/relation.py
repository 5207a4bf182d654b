"""Metamorphic relations: how the result of a call must change when the call changes. They need no reference result.

    exact        bit for bit, because no rounding differs
    bound        within the sum of the error bounds of both calls, because the order of a sum or a rounding may differ
    capability   bit for bit, if the declaration promises it

A relation adapts a drawn case first: it hides keys in a case without hidden keys, for instance.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Literal

from tfkit.plugin import AttentionInputs

from ..attention.backend_under_test import BackendUnderTest
from ..attention.case import Case
from ..attention.compare import request_of
from ..attention.evaluated import Evaluated
from .call_parts import Piece, agree, stored, wide

Demand = Literal["exact", "bound", "capability"]


@dataclass(frozen=True)
class Feature:
    """A feature of a case or a declaration with which a relation does not apply; `words` describe it."""

    words: str
    present: Callable[[Case, BackendUnderTest], bool]


@dataclass(frozen=True)
class Relation:
    """A metamorphic relation.

    Args:
        number: "R1" to "R42", or the rule that it follows from.
        summary: the relation in one sentence.
        demand: how the results are compared, see above.
        run: checks a case. Returns the largest error over its bound, or None if the relation is exact. Raises Violation or
            Inconclusive.
        rule: the rule of the contract that the relation tests.
        adapt: changes a drawn case so that the relation applies.
        voided_by: features with which the relation does not apply.
        calls: the other calls that it makes, so that the suite knows in advance whether the declaration refuses one.
        draws: the relation is about dropout. All others need calls without dropout.
        slow: the suite gives it few cases.
    """

    name: str
    number: str
    summary: str
    demand: Demand
    run: Callable[[Evaluated], float | None]
    rule: str = ""
    adapt: Callable[[Case, BackendUnderTest], Case] = lambda case, subject: case
    voided_by: tuple[Feature, ...] = ()
    calls: Callable[[Evaluated], list[Piece]] | None = None
    draws: bool = False
    slow: bool = False

    @property
    def label(self) -> str:
        """The name in reports, such as `R12 batch_split`."""
        return f"{self.number} {self.name}"

    def applies(self, case: Case, subject: BackendUnderTest) -> str:
        """The feature with which the relation does not apply to a case, in words, or ""."""
        if case.dropout and not self.draws:
            return "dropout"
        return next((feature.words for feature in self.voided_by if feature.present(case, subject)), "")


def rewritten(
    name: str,
    number: str,
    summary: str,
    because: str,
    parts: Callable[[Evaluated, AttentionInputs], list[Piece]],
    rule: str = "",
    adapt: Callable[[Case, BackendUnderTest], Case] = lambda case, subject: case,
    voided_by: tuple[Feature, ...] = (),
) -> Relation:
    """A relation that rewrites a case as other calls and compares within both bounds. `because` ends the message."""

    def run(evaluated: Evaluated) -> float | None:
        return agree(name, evaluated, partial(parts, evaluated), f"differs by more than both bounds {because}")

    def calls(evaluated: Evaluated) -> list[Piece]:
        return parts(evaluated, wide(evaluated.inputs))

    return Relation(name, number, summary, "bound", run, rule, adapt, voided_by, calls)


def fit(relation: Relation, subject: BackendUnderTest, case: Case) -> Case | str:
    """The case adapted to the relation, or the reason why the relation does not apply to it."""
    adapted = relation.adapt(case, subject)
    reason = relation.applies(adapted, subject)
    if reason:
        return reason
    verdict = subject.evaluate(adapted.request(subject.device))
    if verdict.refused:
        return f"not declared: {', '.join(verdict.refused)}"
    if relation.calls is not None:
        evaluated = Evaluated(subject, adapted)
        for piece in relation.calls(evaluated):
            verdict = subject.evaluate(request_of(stored(piece, evaluated.inputs)))
            if verdict.refused:
                return f"the other call is not declared: {', '.join(verdict.refused)}"
    return adapted
