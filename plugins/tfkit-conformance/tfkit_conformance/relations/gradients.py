"""R1, R39, A9, A10: which gradients arrive, and what the declaration promises of them.

fewer              each tensor's gradient is the same when some of the others are not wanted
weights            where they are declared differentiable, their gradient is that of the output with one-hot values:
                   O = P Z V with V = 1 is P itself
deterministic      the same call twice gives the same gradients, bit for bit
double backward    torch.autograd.gradgradcheck in its fast mode: random projections, in float64; if it is not declared, an
                   error or the right derivatives
"""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import torch
from torch import Tensor

from ..attention.backend_under_test import BackendUnderTest
from ..attention.case import Case
from ..attention.compare import leaves_of, request_of
from ..attention.evaluated import Call, Evaluated, backward_of, run, run_backward
from ..attention.reference import reference
from ..attention.score_functions import negated_product, without_score
from ..differences import double
from ..finding import Violation
from ..raised import format_exception
from .draws import own_generator, seed_generator
from .fitting import NO_FLOAT64, NO_GRADIENTS, NO_QUERY_GRADIENTS, undeclared
from .paired_calls import identical, leaf_copies, with_leaves, within
from .relation import Feature, Relation


def _fewer_gradients(evaluated: Evaluated) -> float:
    check, worst = "fewer_gradients", 0.0
    requested = [name for name, leaf in leaves_of(evaluated.inputs).items() if leaf.requires_grad]
    for wanted in (names for count in range(1, len(requested)) for names in combinations(requested, count)):
        inputs = leaf_copies(evaluated.inputs)
        for name, leaf in leaves_of(inputs).items():
            leaf.requires_grad_(name in wanted)
        answer = run(evaluated.subject, inputs, check)
        words = " and ".join(wanted)
        if not answer.output.requires_grad:
            raise Violation(check, f"no gradient reaches {words} where nothing else requires one")
        gradients = run_backward(evaluated.subject, answer, inputs, evaluated.grad_output, check)
        for name, gradient in gradients.items():
            because = f"differs by more than both bounds where only {words} require one"
            want, bound = evaluated.gradients[name], 2 * evaluated.bounds.gradients[name]
            worst = max(worst, within(check, f"gradient of {name}", gradient, want, bound, because))
    return worst


def _weights_carry_gradients(evaluated: Evaluated) -> float:
    """In some calls beside dropout, before which the weights are, and in some of a score function, where any is declared."""
    check, case = "weights_carry_gradients", evaluated.case
    dropout = 0.3 if evaluated.subject.capabilities.dropout and case.seed % 3 == 0 else 0.0
    inputs = leaf_copies(replace(evaluated.inputs, return_weights=True, dropout=dropout))
    inputs = inputs if evaluated.subject.accepts(request_of(inputs)) else replace(inputs, dropout=0.0)
    if "*" in evaluated.subject.capabilities.scores and case.seed % 3 == 1:
        scored = replace(inputs, **negated_product(inputs))
        inputs = scored if evaluated.subject.accepts(request_of(scored)) else inputs
    with own_generator(evaluated.subject.device, case.seed):
        answer = run(evaluated.subject, inputs, check)
    if answer.weights is None or not answer.weights.requires_grad:
        raise Violation(check, "the weights carry no gradient although they are declared differentiable")
    draw = torch.Generator().manual_seed(case.seed + 10)
    sent = torch.randn(answer.weights.shape, generator=draw, dtype=torch.float64).to(answer.weights)
    leaves = {name: leaf for name, leaf in leaves_of(inputs).items() if leaf.requires_grad and name != "value"}
    with backward_of(evaluated.subject, check):
        gradients = torch.autograd.grad(answer.weights, list(leaves.values()), sent)
    identity = torch.eye(case.K, dtype=inputs.query.dtype, device=inputs.query.device).expand(case.B, case.G, -1, -1)
    due = Call(evaluated.subject, without_score(replace(inputs, value=identity, dropout=0.0)), sent)
    worst = 0.0
    for name, gradient in zip(leaves, gradients, strict=True):
        bound, want = due.bounds.gradients[name], due.reference.gradients[name]
        because = "from the weights is wrong by more than its bound"
        worst = max(worst, within(check, f"gradient of {name}", gradient, want, bound, because))
    return worst


def _deterministic_backward(evaluated: Evaluated) -> None:
    again = Call(evaluated.subject, leaf_copies(evaluated.inputs), evaluated.grad_output)
    for name, gradient in evaluated.gradients.items():
        because = "differs when the same call is made again, although deterministic_backward is declared"
        identical("deterministic_backward", f"gradient of {name}", again.gradients[name], gradient, because)


def _double_backward(evaluated: Evaluated) -> None:
    """In some calls with dropout, whose draw is the same in every call."""
    inputs, seed = evaluated.inputs, evaluated.case.seed
    dropping = replace(inputs, dropout=0.3)
    if evaluated.subject.capabilities.dropout and seed % 2 and evaluated.subject.accepts(request_of(dropping)):
        inputs = dropping
    leaves = {name: leaf.detach().clone().requires_grad_(name != "bias") for name, leaf in leaves_of(inputs).items()}
    bias = leaves.get("bias")
    checked = [name for name in leaves if name != "bias" or (bias is not None and bias.dtype == torch.float64)]

    def output(*tensors: Tensor) -> Tensor:
        call = with_leaves(inputs, {**leaves, **dict(zip(checked, tensors, strict=True))})
        seed_generator(evaluated.subject.device, seed)
        return evaluated.subject.call(call).output

    with torch.random.fork_rng(devices=[inputs.query.device] if inputs.query.is_cuda else []):
        try:
            torch.autograd.gradgradcheck(output, [leaves[name] for name in checked], fast_mode=True)
        except Exception as reason:
            raise Violation("double_backward", f"its second derivatives are wrong: {format_exception(reason)}") from reason


def _undeclared_double_backward(evaluated: Evaluated) -> None:
    """Second derivatives that are not declared raise, or are right: H r, against differences of the reference's gradients."""
    check, inputs = "undeclared_double_backward", leaf_copies(evaluated.inputs)
    leaves = {name: leaf for name, leaf in leaves_of(inputs).items() if name != "bias"}
    draw = torch.Generator().manual_seed(evaluated.case.seed + 11)
    along = {name: torch.randn(leaf.shape, generator=draw, dtype=torch.float64) for name, leaf in leaves.items()}
    output = run(evaluated.subject, inputs, check).output
    try:
        first = torch.autograd.grad(output, list(leaves.values()), evaluated.grad_output, create_graph=True)
        product = sum((one * along[name].to(one)).sum() for name, one in zip(leaves, first, strict=True))
        second = torch.autograd.grad(product, list(leaves.values()), allow_unused=True)  # type: ignore[arg-type]
    except Exception:  # any exception is a refusal
        return
    step, ends = 1e-5, []
    for sign in (1, -1):
        moved = {name: double(leaf) + sign * step * along[name] for name, leaf in leaves.items()}
        ends.append(reference(with_leaves(inputs, {**leaves_of(inputs), **moved}), evaluated.grad_output).gradients)
    for name, derivative in zip(leaves, second, strict=True):
        want = (ends[0][name] - ends[1][name]) / (2 * step)
        got = torch.zeros_like(want) if derivative is None else double(derivative)
        off, size = float((got - want).norm()), float(want.norm())
        if off > 0.02 * size + 1e-6:
            message = (
                f"double_backward is not declared, but second derivatives of {name} come without an error, and are wrong by "
                f"{off / max(size, 1e-30):.2g} of their norm: raise an error (`once_differentiable`)"
            )
            raise Violation(check, message, tensor=f"gradient of {name}")


def _single(case: Case, subject: BackendUnderTest) -> Case:
    dtype = "float64" if "float64" in subject.capabilities.dtypes else "float32"
    return replace(case, dtype=dtype, regime="normal", gradients=True, weights=False, lse=False, layout="contiguous")


def _small_double(case: Case, subject: BackendUnderTest) -> Case:
    return replace(case, dtype="float64", regime="normal", gradients=True, weights=False, lse=False)


_DETACHED = Feature(
    "differentiable weights are not declared", lambda case, subject: subject.capabilities.weights != "differentiable"
)
_DECLARED = Feature("double_backward is declared", lambda case, subject: subject.capabilities.double_backward)
_NO_SINGLE = Feature(
    "neither float64 nor float32 is declared, or no backward",
    lambda case, subject: not (subject.capabilities.backward and {"float64", "float32"} & subject.capabilities.dtypes),
)
_NOT_HERE = Feature(
    "a deterministic backward of this call is refused on this device",
    lambda case, subject: not subject.accepts(replace(case.request(subject.device), deterministic=True)),
)

GRADIENTS = (
    Relation("fewer_gradients", "A10", "Each gradient is the same when fewer are requested.", "bound",
             _fewer_gradients, rule="A10", voided_by=(NO_GRADIENTS,)),
    Relation("weights_carry_gradients", "A9", "Weights that are declared differentiable pass gradients to queries and keys.",
             "capability", _weights_carry_gradients, rule="A9",
             adapt=lambda case, subject: replace(case, weights=True), voided_by=(_DETACHED, NO_QUERY_GRADIENTS)),
    Relation("deterministic_backward", "R1", "The same call twice gives the same gradients.", "capability",
             _deterministic_backward, rule="A10", voided_by=(undeclared("deterministic_backward"), NO_GRADIENTS, _NOT_HERE)),
    Relation("undeclared_double_backward", "R39", "Second derivatives that are not declared raise an error, or are right.",
             "capability", _undeclared_double_backward, rule="A10", adapt=_single, voided_by=(_DECLARED, _NO_SINGLE)),
    Relation("double_backward", "R39", "Second derivatives are right, in float64.", "capability",
             _double_backward, rule="A10", adapt=_small_double, voided_by=(undeclared("double_backward"), NO_FLOAT64)),
)  # fmt: skip
