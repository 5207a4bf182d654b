"""A2: a query whose scores have no softmax gets NaN, so that a damaged model is seen, or zeros where they are declared.

    scores with NaN or +inf, or of -inf alone          the output row is NaN; with `numerics.nan_as_zero`, NaN or 0

Other rows, and rows that see no damaged key, are left to the other checks.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..attention.backend_under_test import BackendUnderTest
from ..attention.case import Case
from ..attention.evaluated import Evaluated, run
from ..differences import first_of
from ..finding import Violation
from .fitting import BENT_SCORES, own_memory, shown
from .paired_calls import format_element, leaf_copies
from .relation import Feature, Relation

DAMAGES = ("NaN in a query", "infinity in a query", "NaN in a key", "infinity in a key", "scores of -inf alone")


def _damaged(evaluated: Evaluated, damage: str) -> dict[str, Tensor]:
    """Query and key with numbers that are not finite in one row: (B,H,Q,D) and (B,G,K,D)."""
    case, inputs = evaluated.case, evaluated.inputs
    query, key = inputs.query.detach().clone(), inputs.key.detach().clone()
    b, h, i, j = evaluated.visible.nonzero()[case.seed % int(evaluated.visible.sum())].tolist()
    group = h // (case.H // case.G)
    number = torch.nan if damage.startswith("NaN") else torch.inf if case.seed % 2 else -torch.inf
    if damage.endswith("query"):
        query[b, h, i, case.seed % case.D] = number
    elif damage.endswith("key"):
        key[b, group, j, case.seed % case.D] = number
    else:
        query[b, h, i, 0], key[b, group, :, 0] = (1.0 if inputs.scale > 0 else -1.0), -torch.inf
    return {"query": query, "key": key}


def without_softmax(evaluated: Evaluated, query: Tensor, key: Tensor) -> Tensor:
    """The queries whose scores have no softmax: bool (B,H,Q). The bias is finite, so the products tell."""
    group_size = evaluated.case.H // evaluated.case.G
    wide = [tensor.cpu().double() for tensor in (query, key.repeat_interleave(group_size, 1))]
    scores, visible = evaluated.inputs.scale * (wide[0] @ wide[1].mT), evaluated.visible
    above = (visible & (scores.isnan() | scores.isposinf())).any(-1)
    return above | (visible.any(-1) & (~visible | scores.isneginf()).all(-1))


def _not_finite(evaluated: Evaluated) -> None:
    check, subject = "not_finite", evaluated.subject
    zero_allowed = evaluated.inputs.query.device.type in subject.capabilities.numerics.nan_as_zero
    for damage in DAMAGES:
        tensors = _damaged(evaluated, damage)
        rows = without_softmax(evaluated, **tensors)
        with torch.no_grad():
            output = run(subject, leaf_copies(evaluated.inputs, **tensors), check).output.detach().cpu()
        right = output.isnan() | (output == 0) if zero_allowed else output.isnan()
        wrong = rows[..., None] & ~right
        if bool(wrong.any()):
            index = first_of(wrong)
            got, want = float(output[tuple(index)]), "NaN or 0" if zero_allowed else "NaN"
            message = f"{format_element('output', index)} is {got:g} with {damage}, expected {want}"
            if got == 0.0:
                message += "; a backend that gives zeros there declares `numerics.nan_as_zero`"
            raise Violation(check, message, tensor="output")


_FUNCTION = Feature(
    "a function, which declares nothing", lambda case, subject: subject.entry.attend.endswith(":FunctionUnderTest.attend")
)
_NO_ROW = Feature("no query sees a key", lambda case, subject: not bool(shown(case).any()))


def _forward(case: Case, subject: BackendUnderTest) -> Case:
    return replace(own_memory(case, subject), gradients=False, bias_gradient=False)


NOT_FINITE = (
    Relation(
        "not_finite", "A2", "A query whose scores have no softmax gets NaN, or zeros where they are declared.", "exact",
        _not_finite, rule="A2", adapt=_forward,
        voided_by=(BENT_SCORES, _NO_ROW, _FUNCTION),
    ),
)  # fmt: skip
