"""R38, R39: what gradients must satisfy among themselves, per batch row and key/value head.

    sum_j dK_j = 0                   a vector added to all keys changes no weight (not under softcap)
    <V, dV> = <dO, O>                the output is linear in the values
    <K, dK> = <Q, dQ>                scores depend on the products q . k alone
    (f(x + h d) - f(x - h d)) / 2h = <gradient, d>      up to the truncation that the float64 reference itself has there

Each is a linear map of quantities with known bounds, so that its own bound is the same map of the bounds' absolute values.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from ..attention.backend_under_test import BackendUnderTest
from ..attention.case import Case
from ..attention.compare import leaves_of
from ..attention.elements import REPEATING
from ..attention.evaluated import Call, Evaluated
from ..differences import double
from ..finding import Violation
from .fitting import BENT_SCORES, NO_FLOAT64, NO_GRADIENTS, NO_QUERY_GRADIENTS
from .paired_calls import leaf_copies, within
from .relation import Relation

DIFFERENCE_STEP = 2.0**-16
"""h of the difference quotient: its truncation is of order h^2, its rounding of order 2^-53 / h."""


def _key_gradients_cancel(evaluated: Evaluated) -> float:
    gradient, bound = evaluated.gradients["key"], evaluated.bounds.gradients["key"]
    check = "key_gradients_cancel"
    total, allowed = double(gradient).sum(2), bound.sum(2)
    because = "do not add up to 0 over the keys, by more than their bounds"
    return _evaluate(check, "gradients of key", total, torch.zeros_like(total), allowed, because)


def _value_identity(evaluated: Evaluated) -> float:
    value, sent = (double(tensor) for tensor in (evaluated.inputs.value, evaluated.grad_output))
    gradient, output = double(evaluated.gradients["value"]), double(evaluated.output.output)
    left, left_bound = value * gradient, value.abs() * evaluated.bounds.gradients["value"]
    right, right_bound = sent * output, sent.abs() * evaluated.bounds.output
    because = "times the values are not the output times its gradient, by more than their bounds"
    return _products("value_identity", "gradients of value", evaluated, (left, left_bound), (right, right_bound), because)


def _score_identity(evaluated: Evaluated) -> float:
    key, query = (double(tensor) for tensor in (evaluated.inputs.key, evaluated.inputs.query))
    bound = evaluated.bounds.gradients
    left, left_bound = key * double(evaluated.gradients["key"]), key.abs() * bound["key"]
    right, right_bound = query * double(evaluated.gradients["query"]), query.abs() * bound["query"]
    because = "times the keys are not the gradients of the queries times the queries, by more than their bounds"
    return _products("score_identity", "gradients of key", evaluated, (left, left_bound), (right, right_bound), because)


def _products(
    check: str, name: str, evaluated: Evaluated, left: tuple[Tensor, Tensor], right: tuple[Tensor, Tensor], because: str
) -> float:
    G = evaluated.case.G
    sums = [tensor.reshape(tensor.shape[0], G, -1).sum(2) for pair in (left, right) for tensor in pair]
    return _evaluate(check, name, sums[0], sums[2], sums[1] + sums[3], because)


def _evaluate(check: str, name: str, got: Tensor, want: Tensor, bound: Tensor, because: str) -> float:
    try:
        return within(check, name, got, want, bound, because)
    except Violation as broken:
        where = f"{name} of batch row {broken.index[0]}, key/value head {broken.index[1]}"
        raise Violation(check, f"{where} {because}", **broken.numbers) from None


def _difference_quotient(evaluated: Evaluated) -> float:
    """|FD - <g, d>| <= (<|dO|, T_O(x + hd)> + <|dO|, T_O(x - hd)>) / 2h + <T_g, |d|> + |FD_ref - <g_ref, d>|, where d is half
    the difference of the two points as they are stored, over h."""
    leaves = {name: leaf for name, leaf in leaves_of(evaluated.inputs).items() if leaf.requires_grad}
    draw = torch.Generator().manual_seed(evaluated.case.seed + 9)
    points: list[dict[str, Tensor]] = [{}, {}]
    for name, leaf in leaves.items():
        step = DIFFERENCE_STEP * torch.randn(leaf.shape, generator=draw, dtype=torch.float64).to(leaf.device)
        for point, sign in zip(points, (1, -1), strict=True):
            point[name] = (leaf.detach().double() + sign * step).to(leaf.dtype)
    above, below = (Call(evaluated.subject, leaf_copies(evaluated.inputs, **point), evaluated.grad_output) for point in points)
    sent = double(evaluated.grad_output)

    def quotient(high: Tensor, low: Tensor) -> Tensor:
        return (sent * (double(high) - double(low))).sum() / (2 * DIFFERENCE_STEP)

    numeric = quotient(above.output.output, below.output.output)
    right = quotient(above.reference.output, below.reference.output)
    rounding = (sent.abs() * (above.bounds.output + below.bounds.output)).sum() / (2 * DIFFERENCE_STEP)
    slope, true_slope, uncertain = (torch.zeros((), dtype=torch.float64) for _ in range(3))
    for name in leaves:
        along = (double(leaves_of(above.inputs)[name]) - double(leaves_of(below.inputs)[name])) / (2 * DIFFERENCE_STEP)
        slope = slope + (double(evaluated.gradients[name]) * along).sum()
        true_slope = true_slope + (evaluated.reference.gradients[name] * along).sum()
        uncertain = uncertain + (evaluated.bounds.gradients[name] * along.abs()).sum()
    truncation = (right - true_slope).abs()
    because = "differs from the difference quotient of the output along a random direction, by more than the bounds"
    check, allowed = "difference_quotient", rounding + uncertain + truncation
    if not bool((slope - numeric).abs() <= allowed):
        raise Violation(check, f"the gradient {because}", tensor="gradients", got=float(slope), want=float(numeric),
                        bound=float(allowed))  # fmt: skip
    return float((slope - numeric).abs() / allowed) if float(allowed) else 0.0


def _in_double(case: Case, subject: BackendUnderTest) -> Case:
    """Numbers in float64, of moderate size."""
    regime = case.regime if case.regime in ("normal", "small", "lattice", "ties") else "normal"
    layout = "contiguous" if case.layout in REPEATING else case.layout
    return replace(case, dtype="float64", regime=regime, layout=layout)


IDENTITIES = (
    Relation("key_gradients_cancel", "R38", "The gradients of all keys add up to 0.", "bound",
             _key_gradients_cancel, rule="A10", voided_by=(NO_QUERY_GRADIENTS, BENT_SCORES)),
    Relation("value_identity", "R38", "Values times their gradients are the output times its gradient.", "bound",
             _value_identity, rule="A10", voided_by=(NO_QUERY_GRADIENTS,)),
    Relation("score_identity", "R38", "Keys times their gradients are queries times theirs.", "bound",
             _score_identity, rule="A10", voided_by=(NO_QUERY_GRADIENTS,)),
    Relation("difference_quotient", "R39", "Gradients are the slope of the output along a random direction, in float64.",
             "bound", _difference_quotient, rule="A10", adapt=_in_double, voided_by=(NO_GRADIENTS, NO_FLOAT64)),
)  # fmt: skip
