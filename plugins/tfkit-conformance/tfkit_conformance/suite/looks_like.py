"""The mutant with the same result on a case: a name for the error ("causal limit one key too far").

A mutant is named when it fails this case too and gives, tensor by tensor, what the backend gave, within the error bounds.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

from torch import Tensor

from ..attention.backend_under_test import BackendUnderTest, backend_under_test
from ..attention.case import Case
from ..attention.compare import leaves_of
from ..attention.evaluated import Evaluated
from ..differences import double
from ..finding import Inconclusive, Violation
from ..mutants import ATTENTION_MUTANTS, Mutant

SECONDS = 4.0
WITNESSES = 6


def looks_like(subject: BackendUnderTest, case: Case, others: Sequence[Case] = (), named: Sequence[str] = ()) -> str:
    """The summary of the mutant that gives the same, or nothing. Several mutants often fail a small case alike: the one is
    named that gives the same on most of `others`, larger cases that failed, and on half of them at least; among equals one of
    `named`, what earlier findings of the same run look like."""
    same = list(_alike(subject, case, ATTENTION_MUTANTS))
    tried = [other for other in others[:: max(1, len(others) // WITNESSES)] if other != case][:WITNESSES]
    agreed = Counter({mutant.name: 0 for mutant in same})
    for other in tried if len(same) > 1 else ():
        agreed.update(mutant.name for mutant in _alike(subject, other, same))
    best = max(same, key=lambda mutant: (agreed[mutant.name], mutant.summary in named), default=None)
    if best is None or (len(same) > 1 and 2 * agreed[best.name] < len(tried)):
        return ""
    return best.summary


def _alike(subject: BackendUnderTest, case: Case, mutants: Iterable[Mutant]) -> Iterator[Mutant]:
    """The mutants that give on this case what the backend gives, and not what is right."""
    evaluated, started = Evaluated(subject, case), time.monotonic()
    try:
        mine, allowed, right = _outcome(evaluated), _allowed(evaluated), _right(evaluated)
    except (Violation, Inconclusive):
        return
    for mutant in mutants:
        if time.monotonic() - started > SECONDS:
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
