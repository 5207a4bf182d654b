"""The mutant with the same result on a case: a name for the error ("causal limit one key too far").

A mutant is named when it fails this case too and gives, tensor by tensor, what the backend gave, within the error bounds; and
when it explains every other finding of the run (`explains`).
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor

from tfkit import InputError

from ..attention.backend_under_test import BackendUnderTest, backend_under_test
from ..attention.case import Case
from ..attention.case_data import case_of
from ..attention.compare import leaves_of
from ..attention.evaluated import Evaluated
from ..differences import double
from ..finding import Finding, Inconclusive, Violation
from ..mutants import ATTENTION_MUTANTS, Mutant
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
    [mutant] = [each for each in ATTENTION_MUTANTS if each.summary == summary]
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
    found = {"output": evaluated.output.output}
    if evaluated.output.lse is not None and evaluated.case.lse:
        found["lse"] = evaluated.output.lse
    if any(leaf.requires_grad for leaf in leaves_of(evaluated.inputs).values()):
        found |= evaluated.gradients
    return {name: double(tensor) for name, tensor in found.items()}


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
