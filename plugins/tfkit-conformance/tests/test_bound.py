"""The bound can fail: mutants exceed it, each in the dtype in which it can be seen, and the correct kernel does not."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from attention_calls import typed
from tfkit.builtin.attention.eager import attend
from tfkit.plugin import AttentionOutput, DenseBias, Mask, NoOptions, Numerics
from tfkit_conformance.attention.bound import bounds, worst_ratio
from tfkit_conformance.attention.case import Case
from tfkit_conformance.attention.compare import error_ratios
from tfkit_conformance.attention.reference import reference, visible_pairs
from tfkit_conformance.finding import Inconclusive

CASE = Case(B=2, H=6, G=3, Q=9, K=12, D=16, V=10, causal=True, offset=3)
CAPPED = replace(CASE, softcap=1.0)
EXACT, FUSED = Numerics(probabilities="accumulation"), Numerics()


def changed(**how):
    return lambda inputs: attend(replace(inputs, **{name: change(inputs) for name, change in how.items()}), NoOptions()).output


def one_key_dropped(inputs):
    shown = visible_pairs(inputs.mask, CASE.B, CASE.H, CASE.Q, CASE.K)
    shown[0, 0, 8, 5] = False
    return attend(replace(inputs, mask=Mask(visible=shown)), NoOptions()).output


def tiled_heads(inputs):
    order = torch.arange(CASE.H) % CASE.G
    return attend(replace(inputs, key=inputs.key[:, order], value=inputs.value[:, order]), NoOptions()).output


def large_negative_instead_of_hidden(inputs):
    shown = visible_pairs(inputs.mask, CASE.B, CASE.H, CASE.Q, CASE.K)
    return attend(replace(inputs, mask=Mask(), bias=DenseBias(torch.where(shown, 0.0, -6.0))), NoOptions()).output


class Scaled(torch.autograd.Function):
    """The identity, with a gradient that is 1.02 times too large."""

    @staticmethod
    def forward(ctx, tensor):
        return tensor.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * 1.02


MUTANTS = {
    "scale_one_percent": (CASE, changed(scale=lambda inputs: inputs.scale * 1.01), "half"),
    "causal_one_too_many": (CASE, changed(mask=lambda inputs: replace(inputs.mask, offset=4)), "half"),
    "causal_one_too_few": (CASE, changed(mask=lambda inputs: replace(inputs.mask, offset=2)), "half"),
    "mask_ignored": (CASE, changed(mask=lambda inputs: Mask()), "half"),
    "softcap_ignored": (CAPPED, changed(softcap=lambda inputs: None), "half"),
    "value_gradient": (CASE, changed(value=lambda inputs: Scaled.apply(inputs.value)), "half"),
    "query_gradient": (CASE, changed(query=lambda inputs: Scaled.apply(inputs.query)), "single"),
    "dropout_one_percent": (CASE, changed(dropout=lambda inputs: 0.01), "half"),
    "one_key_dropped": (CASE, one_key_dropped, "half"),
    "tiled_heads": (CASE, tiled_heads, "half"),
    "weak_fill": (CASE, large_negative_instead_of_hidden, "half"),
    "heads_swapped": (CASE, lambda inputs: attend(inputs, NoOptions()).output.flip(1), "half"),
    "output_rounded_to_half": (
        CASE,
        lambda inputs: attend(inputs, NoOptions()).output.bfloat16().to(inputs.query.dtype),
        "single",
    ),
}


@pytest.mark.parametrize("mutant", MUTANTS)
def test_a_mutant_exceeds_the_bound(mutant):
    case, mutant, seen_in = MUTANTS[mutant]
    torch.manual_seed(0)
    for dtype in [torch.float32] + [torch.bfloat16] * (seen_in == "half"):
        inputs, gradient = typed(case, dtype).inputs(), typed(case, dtype).grad_output()
        ratios = error_ratios(lambda inputs, options: AttentionOutput(mutant(inputs)), None, FUSED, inputs, gradient)
        assert max(ratios.values()) > 1, (dtype, ratios)


@pytest.mark.parametrize("factor", [1.0, 6.0, 1e-3])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16], ids=str)
def test_the_correct_kernel_stays_within_it_for_small_and_large_scores(dtype, factor):
    for seed in range(5):
        inputs = typed(CASE, dtype, seed).inputs()
        inputs = replace(inputs, query=(inputs.query * factor).detach().requires_grad_())
        ratios = error_ratios(attend, NoOptions(), EXACT, inputs, typed(CASE, dtype, seed).grad_output())
        assert max(ratios.values()) <= 1, ratios


def test_a_wider_class_never_has_a_smaller_bound():
    inputs = typed(CASE, torch.bfloat16).inputs()
    found = reference(inputs, typed(CASE, torch.bfloat16).grad_output())
    narrow = bounds(found, EXACT)
    for wider in (FUSED, Numerics(scores="storage"), Numerics(gradients="storage")):
        wide = bounds(found, wider)
        assert (wide.output >= narrow.output).all()
        assert all((wide.gradients[leaf] >= narrow.gradients[leaf]).all() for leaf in narrow.gradients)


def test_scores_that_the_dtype_cannot_hold_are_not_evaluated():
    inputs = typed(CASE, torch.bfloat16).inputs()
    inputs = replace(inputs, query=inputs.query.detach() * 400)
    assert not bounds(reference(inputs), Numerics(scores="storage")).evaluated.all()
    with pytest.raises(Inconclusive, match="too large for this dtype"):
        error_ratios(attend, NoOptions(), Numerics(scores="storage"), inputs, typed(CASE, torch.bfloat16).grad_output())


def test_nan_and_a_wrong_shape_are_infinitely_wrong():
    one = torch.ones(2)
    assert worst_ratio(torch.tensor([1.0, torch.nan]), one, one) == torch.inf
    assert worst_ratio(torch.ones(1), one, one) == torch.inf
    assert worst_ratio(torch.tensor([1.0, 1.5]), one, one) == 0.5
