"""Kernels that are right once, and wrong in how they may be used: each is found by the check of that use."""

from __future__ import annotations

import threading
import warnings
from dataclasses import replace

import pytest
import torch

from kill_matrix.correct_kernels import CORRECT_KERNELS, whole
from tfkit_conformance.attention.backend_under_test import backend_under_test
from tfkit_conformance.attention.case import Case
from tfkit_conformance.attention.evaluated import Evaluated
from tfkit_conformance.attention.reference import reference
from tfkit_conformance.finding import Violation
from tfkit_conformance.relations import RELATIONS
from tfkit_conformance.suite.layers import contract

CASE = Case(B=2, H=2, G=2, Q=5, K=7, D=8, V=8, dtype="float64", gradients=True)
BY_NAME = {relation.name: relation for relation in RELATIONS}
KEPT: list[torch.Tensor] = []
WORKSPACE: dict[tuple[int, ...], tuple[torch.Tensor, ...]] = {}


class Explicit(torch.autograd.Function):
    """Attention without a mask, with a backward of its own; subclasses are wrong in one way."""

    @staticmethod
    def forward(ctx, query, key, value, scale):
        weights = torch.softmax(scale * query @ key.mT, -1)
        ctx.scale = scale
        ctx.save_for_backward(query, key, value, weights)
        return weights @ value

    @staticmethod
    def gradients(ctx, sent, query, key, value, weights):
        passed = sent @ value.mT
        raw = ctx.scale * weights * (passed - (weights * passed).sum(-1, keepdim=True))
        return raw @ key, raw.mT @ query, weights.mT @ sent, None

    @staticmethod
    def backward(ctx, sent):
        return Explicit.gradients(ctx, sent, *ctx.saved_tensors)


class WorkspacePerShape(Explicit):
    @staticmethod
    def forward(ctx, query, key, value, scale):
        found = Explicit.forward(ctx, query, key, value, scale)
        WORKSPACE[tuple(query.shape)] = tuple(t.clone() for t in (query, key, value, torch.softmax(scale * query @ key.mT, -1)))
        return found

    @staticmethod
    def backward(ctx, sent):
        return Explicit.gradients(ctx, sent, *WORKSPACE[tuple(sent.shape)])


class SingleUse(Explicit):
    @staticmethod
    def backward(ctx, sent):
        saved = [tensor.clone() for tensor in ctx.saved_tensors]
        found = Explicit.gradients(ctx, sent, *saved)
        ctx.saved_tensors[3].zero_()
        return found


class WritesToTheSentGradient(Explicit):
    @staticmethod
    def backward(ctx, sent):
        found = Explicit.gradients(ctx, sent, *ctx.saved_tensors)
        sent.mul_(0.5)
        return found


class ForgetsThatWeightsDepend(Explicit):
    """Its second derivatives take the weights of the forward pass for constants."""

    @staticmethod
    def backward(ctx, sent):
        query, key, value, weights = ctx.saved_tensors
        return Explicit.gradients(ctx, sent, query, key, value, weights.detach())


def explicit(function):
    def attend(call, options):
        found = function.apply(call.query, call.key, call.value, call.scale)
        return replace(whole(call), output=found)

    return attend


def changes(setting, value):
    def attend(call, options):
        setting(value)
        return whole(call)

    return attend


def keeps_inputs(call, options):
    KEPT.append(call.key)
    return whole(call)


def keeps_the_last_query(call, options):
    KEPT[:] = [call.query]
    return whole(call)


def asks_the_reference_in_a_thread(call, options):
    found = []

    def ask():
        try:
            found.append(reference(call).output.to(call.query.dtype))
        except Violation as violation:
            found.append(violation)

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    if isinstance(found[0], Violation):
        raise found[0]
    return replace(whole(call), output=found[0])


def evaluated(attend):
    return Evaluated(backend_under_test(CORRECT_KERNELS[0].entry, attend=attend), CASE)


USES = {
    "a_call_before_the_backward": (explicit(WorkspacePerShape), "another call comes between"),
    "backward_twice": (explicit(SingleUse), "second of two backward passes|second backward pass"),
    "inputs_released": (keeps_inputs, "key of an earlier call is kept alive"),
    "inputs_released, of the last call": (keeps_the_last_query, "query of an earlier call is kept alive"),
    "undeclared_double_backward": (
        explicit(ForgetsThatWeightsDepend),
        "second derivatives of query come without an error",
    ),
}
"""By relation, a kernel that does not survive it, and what is said of it."""


@pytest.mark.parametrize("relation", USES)
def test_a_use_that_a_kernel_does_not_survive_is_found(relation):
    attend, words = USES[relation]
    run = BY_NAME[relation.partition(",")[0]].run
    run(evaluated(explicit(Explicit) if "double" not in relation else lambda call, options: whole(call)))
    with pytest.raises(Violation, match=words):
        run(evaluated(attend))
    KEPT.clear()


@pytest.mark.parametrize(
    ("attend", "words"),
    [
        (explicit(WritesToTheSentGradient), "was written to in the backward pass"),
        (changes(torch.set_float32_matmul_precision, "medium"), "changed the precision of float32 products"),
        (changes(torch.set_num_threads, 3), "changed the number of threads"),
        (changes(torch.set_default_dtype, torch.float64), "changed the default dtype"),
        (
            changes(warnings.simplefilter, "ignore"),
            "changed whether all warnings are ignored of the process",
        ),
        (asks_the_reference_in_a_thread, "calls the reference that checks it"),
    ],
)
def test_the_contract_finds_what_a_call_leaves_behind(attend, words):
    kept = torch.get_float32_matmul_precision(), torch.get_num_threads(), torch.get_default_dtype()
    contract(evaluated(explicit(Explicit)))
    try:
        with pytest.raises(Violation, match=words), warnings.catch_warnings():
            contract(evaluated(attend))
    finally:
        torch.set_float32_matmul_precision(kept[0])
        torch.set_num_threads(kept[1])
        torch.set_default_dtype(kept[2])


def test_a_kernel_may_divide_by_a_rounded_exponential_of_the_lse():
    """Flash-decoding and ring attention merge so. Its error is about |lse| roundings of the output."""

    def attend(call, options):
        scores = (call.scale * call.query.double() @ call.key.double().mT).float()
        lse = torch.logsumexp(scores.double(), -1, keepdim=True).float()
        return replace(whole(call), output=(torch.exp(scores.double() - lse.double()) @ call.value.double()).float())

    for seed in range(40):
        case = replace(CASE, dtype="float32", gradients=False, Q=3, K=4, regime="huge", seed=seed)
        one = Evaluated(backend_under_test(CORRECT_KERNELS[0].entry, attend=attend), case)
        error = (one.output.output.double() - one.reference.output).abs()
        assert bool((error <= one.bounds.output).all())


def dropping(factors):
    """The equation with dropout by `factors(call)` (B,H,Q,K), which may be wrong."""

    def attend(call, options):
        weights = torch.softmax(call.scale * call.query @ call.key.mT, -1)
        return replace(whole(replace(call, dropout=0.0)), output=(weights * factors(call)) @ call.value)

    return attend


def own_draw(call):
    B, H, Q, _ = call.query.shape
    return (torch.rand(B, H, Q, call.key.shape[2]) >= call.dropout) / (1 - call.dropout)


def one_draw_for_all_tiles_of_64_keys(call):
    drawn = own_draw(call)
    return drawn[..., torch.arange(drawn.shape[-1]) % 64]


def one_draw_for_all_tiles_of_32_queries(call):
    drawn = own_draw(call)
    return drawn[:, :, torch.arange(drawn.shape[2]) % 32]


def one_draw_for_every_second_head(call):
    drawn = own_draw(call)
    return drawn[:, torch.arange(drawn.shape[1]) % 2]


SHARED_DRAWS = {
    "nothing_repeats": [
        (one_draw_for_all_tiles_of_64_keys, "key 0 and key 64 share a draw"),
        (
            one_draw_for_all_tiles_of_32_queries,
            r"query row 0 of .*head 0 and query row \d+ of batch row 0, head 0 share a draw",
        ),
        (
            one_draw_for_every_second_head,
            "query row 0 of .*head 0 and query row 0 of batch row 0, head 2 share a draw",
        ),
    ],
}


@pytest.mark.parametrize(("factors", "words"), SHARED_DRAWS["nothing_repeats"])
def test_a_draw_that_tiles_or_heads_share_is_found(factors, words):
    relation = BY_NAME["nothing_repeats"]

    def run(attend):
        subject = backend_under_test(CORRECT_KERNELS[0].entry, attend=attend)
        relation.run(Evaluated(subject, relation.adapt(replace(CASE, dtype="float32"), subject)))

    run(dropping(own_draw))
    with pytest.raises(Violation, match=words):
        run(dropping(factors))
