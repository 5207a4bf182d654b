"""A metamorphic relation: how a change of a call must change its outcome, independent of the right outcome.

    exact        bit for bit, because no rounding differs
    bound        within the sum of the error bounds of both calls, because the order of a sum or a rounding may differ
    capability   bit for bit, but only where the declaration promises it

A relation first adapts a drawn case (one without hidden keys is given some); features in `voided_by` void it all the same.
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
    """Something in a case, or missing from a declaration, that voids a relation; `words` names it for a reader."""

    words: str
    present: Callable[[Case, BackendUnderTest], bool]


@dataclass(frozen=True)
class Relation:
    """`run` raises Violation in words, or Inconclusive; it gives the largest error as a share of its bound, None where exact.

    `adapt` makes a drawn case fit. `calls` are the further calls that it makes, so that what a declaration does not allow is
    known beforehand. `draws`: it is about dropout; all others want calls without. `number` is R1 to R42, or
    the rule that the relation follows from; `rule` the rule of the contract that it shows.
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
        """Nothing, or the feature that voids the relation for this case, in words."""
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
    """The case as the relation wants it, or, in words, why the relation cannot be tried on it."""
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
