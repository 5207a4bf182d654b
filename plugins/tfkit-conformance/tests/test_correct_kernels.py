"""No correct implementation raises an alarm: every kernel stays within its bound, in every dtype and regime, dropout
included."""

from __future__ import annotations

import itertools
from dataclasses import replace

import pytest
import torch

from attention_calls import typed
from kill_matrix.correct_kernels import CORRECT_KERNELS
from kill_matrix.independent_kernels import INDEPENDENT
from tfkit import BackendRefused
from tfkit.inspection import check_request
from tfkit.plugin import AttentionInputs, Mask, Numerics
from tfkit_conformance.attention.bound import bounds, worst_ratio
from tfkit_conformance.attention.case import Case
from tfkit_conformance.attention.compare import gradients_of, leaves_of, request_of
from tfkit_conformance.attention.elements import REGIMES, drawn_call
from tfkit_conformance.attention.evaluated import Evaluated
from tfkit_conformance.attention.reference import reference
from tfkit_conformance.attention.table import CASES
from tfkit_conformance.callables.check import function_under_test
from tfkit_conformance.finding import Inconclusive
from tfkit_conformance.mutants.kernel import stages
from tfkit_conformance.mutants.kernel.kernel import Kernel
from tfkit_conformance.suite.layers import LAYERS
from tiers import EVERY_CASE

DTYPES = (torch.float32, torch.bfloat16, torch.float16, torch.float64)
BY_NAME = {kernel.name: kernel for kernel in CORRECT_KERNELS}
SEEDS = 1
HEADS = Case(name="heads", B=2, H=6, G=2, Q=5, K=7, D=8, V=5, causal=True, offset=2, key_lengths=(6, 4))


def call_of(case, dtype, regime, seed, bare=False):
    """The case with query, key and value of a regime; everything that can be handed out is asked for."""
    drawn = drawn_call(regime, (case.B, case.H, case.G, case.Q, case.K, case.D, case.V), seed)
    query, key, value = (tensor.to(dtype).requires_grad_() for tensor in drawn)
    inputs = replace(typed(case, dtype, seed).inputs(), query=query, key=key, value=value)
    return inputs if bare else replace(inputs, return_lse=True, return_weights=True)


def ratios(kernel, inputs, grad_output, drawn=None):
    """Error over bound of everything given out; None where nothing can be said of the call."""
    wanted = reference(inputs, grad_output, drawn)
    bound = bounds(wanted, kernel.capabilities.numerics, tf32=kernel.tf32)
    largest = torch.finfo(inputs.query.dtype).max
    if not bound.evaluated.all() or any(float(t.abs().max()) > largest for t in (wanted.output, *wanted.gradients.values())):
        return None
    found = kernel.attend(inputs, None)
    gradients = gradients_of(found.output, inputs, grad_output)
    given = {"output": found.output, "weights": found.weights, "lse": found.lse}
    return {
        **{
            name: worst_ratio(given[name], getattr(wanted, name), getattr(bound, name))
            for name in given
            if given[name] is not None
        },
        **{name: worst_ratio(gradients[name], wanted.gradients[name], bound.gradients[name]) for name in gradients},
    }


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kernel", CORRECT_KERNELS, ids=lambda kernel: kernel.name)
def test_every_case_is_within_the_bound(kernel, dtype):
    regimes, evaluated, first = itertools.cycle(REGIMES), 0, DTYPES.index(dtype)
    for case, seed in itertools.product(CASES, range(first, first + SEEDS)):
        inputs = call_of(case, dtype, next(regimes), seed, bare=kernel.name == "causal_only")
        if not check_request(kernel.entry, request_of(inputs, True), None).accepted:
            with pytest.raises(BackendRefused):
                kernel.attend(inputs, None)
            continue
        found = ratios(kernel, inputs, typed(case, dtype, seed + 7).grad_output())
        evaluated += found is not None
        assert found is None or max(found.values()) <= 1, (case.name, seed, found)
    assert evaluated > (10 if kernel.name == "causal_only" else 40)


@pytest.mark.slow
@pytest.mark.parametrize("dtype", DTYPES[:3], ids=str)
@pytest.mark.parametrize("kernel", [kernel for kernel in CORRECT_KERNELS if kernel.capabilities.dropout], ids=lambda s: s.name)
def test_dropout_is_within_the_bound_of_its_own_draw(kernel, dtype):
    for case, regime, rate in ((CASES[0], "normal", 0.2), (HEADS, "large", 0.7), (CASES[-2], "wide_values", 0.4)):
        inputs = replace(call_of(case, dtype, regime, 3), dropout=rate)
        torch.manual_seed(5)
        drawn = stages.draw(inputs)
        torch.manual_seed(5)
        found = ratios(kernel, inputs, typed(case, dtype).grad_output(), drawn)
        assert max(found.values()) <= 1, (case.name, found)
        assert drawn.unique().tolist() == pytest.approx([0.0, 1 / (1 - rate)], rel=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "narrower"),
    [
        ("query_prescaled", Numerics()),
        ("scores_in_storage", Numerics()),
        ("gradients_in_storage", Numerics()),
        ("online_16", Numerics(probabilities="accumulation")),
        ("tf32", Numerics(tf32=False)),
    ],
)
def test_a_kernel_needs_the_class_that_it_declares(name, narrower):
    kernel = BY_NAME[name]
    claimed = replace(kernel, capabilities=kernel.capabilities.model_copy(update={"numerics": narrower}))
    dtype = torch.float32 if name == "tf32" else torch.bfloat16
    case, worst = replace(CASES[0], Q=200, K=300, D=8, V=16, B=1, H=1, G=1), 0.0
    for regime in ("normal", "large", "ties"):
        worst = max(worst, *ratios(claimed, call_of(case, dtype, regime, 0), typed(case, dtype).grad_output()).values())
    assert worst > 1


@pytest.mark.parametrize("kernel", CORRECT_KERNELS, ids=lambda kernel: kernel.name)
def test_hidden_keys_change_nothing_bit_for_bit(kernel):
    inputs = call_of(CASES[4], torch.float32, "normal", 0, bare=True)
    inputs = replace(inputs, mask=Mask(causal=True, offset=-1))  # the first row is blind, the last keys are seen by nobody
    live = inputs.mask.offset + CASES[4].Q
    poisoned = replace(inputs, key=poison(inputs.key, live), value=poison(inputs.value, live))
    grad_output = CASES[4].grad_output(torch.float32)
    grad_output[:, :, 0] = torch.inf
    clean, other = (kernel.attend(call, None) for call in (inputs, poisoned))
    assert torch.equal(clean.output, other.output)
    assert not clean.output[:, :, 0].any()
    for name, gradient in gradients_of(other.output, poisoned, grad_output).items():
        assert torch.equal(gradient, gradients_of(kernel.attend(inputs, None).output, inputs, grad_output)[name])
        assert gradient.isfinite().all()
        if name != "query":
            assert not gradient[:, :, live:].any()


def poison(tensor, live):
    changed = tensor.detach().clone()
    changed[:, :, live:] = 1e18
    return changed.requires_grad_()


@pytest.mark.parametrize("kernel", CORRECT_KERNELS, ids=lambda kernel: kernel.name)
def test_results_have_the_shapes_and_dtypes_of_the_contract(kernel):
    for dtype, layout in itertools.product(DTYPES, (lambda t: t, lambda t: t.mT.contiguous().mT)):
        inputs = call_of(HEADS, dtype, "normal", 0)
        inputs = replace(inputs, query=layout(inputs.query), mask=Mask(causal=True, offset=2))
        if kernel.name == "causal_only":
            inputs = replace(inputs, return_lse=False, return_weights=False)
        kept = {name: leaf.detach().clone() for name, leaf in leaves_of(inputs).items()}
        found = kernel.attend(inputs, None)
        assert (found.output.shape, found.output.dtype) == ((2, 6, 5, 5), dtype)
        assert found.output.untyped_storage().data_ptr() not in [leaf.untyped_storage().data_ptr() for leaf in kept.values()]
        assert all(torch.equal(leaf, kept[name]) for name, leaf in leaves_of(inputs).items())
        if inputs.return_lse:
            assert (found.lse.shape, found.lse.dtype) == ((2, 6, 5), torch.float32)
            assert (found.weights.shape, found.weights.dtype) == ((2, 6, 5, 7), dtype)
            assert found.weights.requires_grad == (kernel.capabilities.weights == "differentiable")


def test_an_undeclared_second_derivative_is_refused():
    for kernel in CORRECT_KERNELS:
        inputs = call_of(CASES[0], torch.float64, "normal", 0, bare=True)
        (first,) = torch.autograd.grad(kernel.attend(inputs, None).output.sum(), inputs.query, create_graph=True)
        if kernel.capabilities.double_backward:
            torch.autograd.grad(first.sum(), inputs.key)
        else:
            with pytest.raises(BackendRefused, match="no second derivative"):
                torch.autograd.grad(first.sum() + inputs.key.sum(), inputs.key)


def test_recomputed_attention_keeps_its_draw():
    inputs: AttentionInputs = replace(call_of(CASES[0], torch.float32, "normal", 0, bare=True), dropout=0.5)

    def output(query):
        return Kernel()(replace(inputs, query=query)).output

    found = []
    for recompute in (False, True):
        torch.manual_seed(0)
        given = (
            torch.utils.checkpoint.checkpoint(output, inputs.query, use_reentrant=False) if recompute else output(inputs.query)
        )
        found.append(torch.autograd.grad(given.sum(), inputs.query)[0])
    assert torch.equal(*found)


def undecided_or_right(subject, case):
    """False where the bound says nothing of the case. Raises Violation."""
    evaluated = Evaluated(subject, case)
    try:
        for layer in LAYERS:
            layer.evaluate(evaluated)
    except Inconclusive:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize("name", INDEPENDENT)
def test_independent_functions_raise_no_alarm(name):
    """In float32 and bfloat16: a case in the one or the other, in turn for one function after another; or each in both."""
    (function, supports), number, found = INDEPENDENT[name], list(INDEPENDENT).index(name), []
    for seed, dtype in enumerate(("float32", "bfloat16")):
        subject = function_under_test(function, "additive_mask", supports=[*supports, "strides"], dtypes=(dtype,)).subject
        cases = [replace(case, dtype=dtype, seed=seed) for case in CASES]
        accepted = [case for case in cases if subject.accepts(case.request("cpu"))]
        chosen = accepted if EVERY_CASE else accepted[(number + seed) % 2 :: 2]
        found += [undecided_or_right(subject, case) for case in chosen]
    assert sum(found) > (20 if EVERY_CASE else 10)
