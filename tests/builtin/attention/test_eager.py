"""What only `eager` offers: weights, score functions, second derivatives; and that its products are counted as FLOPs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from attention_calls import BY_NAME, typed
from tfkit.builtin.attention.eager import attend
from tfkit.builtin.attention.entries import EAGER
from tfkit.plugin import AttentionInputs, DenseBias, Mask, NoOptions
from tfkit_conformance.attention.compare import error_ratios
from tfkit_conformance.attention.reference import visible_pairs

OPTIONS = NoOptions()


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", ["causal_masked_rows", "segments_visible", "distance_bias_offsets", "softcap_bias"])
def test_a9_weights_are_those_before_dropout_and_differentiable(name, dtype):
    case = BY_NAME[name]
    inputs = replace(typed(case, dtype).inputs(), return_weights=True)
    ratios = error_ratios(attend, OPTIONS, EAGER.capabilities.numerics, inputs, typed(case, dtype).grad_output())
    assert ratios["weights"] <= 1
    weights = attend(replace(inputs, dropout=0.5), OPTIONS).weights
    assert weights.dtype == dtype
    assert torch.equal(weights, attend(inputs, OPTIONS).weights)
    assert torch.autograd.grad(weights.square().sum(), inputs.query)[0].abs().sum() > 0


def test_a5_log_sum_exp_of_blind_rows_is_minus_infinity():
    case = BY_NAME["causal_masked_rows"]
    inputs = replace(typed(case).inputs(), return_lse=True)
    found = attend(inputs, OPTIONS).lse
    masked = ~visible_pairs(inputs.mask, case.B, case.H, case.Q, case.K).any(-1)
    assert torch.equal(found.isneginf(), masked)
    assert found.dtype == torch.float32


@pytest.mark.parametrize("name", ["grouped", "window_masked_rows", "softcap_bias", "linear_bias_offsets", "dense_bias"])
def test_first_and_second_derivatives_agree_with_finite_differences(name):
    case = replace(BY_NAME[name], B=2, H=2, G=1, D=2, V=3)
    inputs = typed(case, torch.float64).inputs()

    def output(query, key, value):
        return attend(replace(inputs, query=query, key=key, value=value), OPTIONS).output

    tensors = (inputs.query, inputs.key, inputs.value)
    assert torch.autograd.gradcheck(output, tensors, fast_mode=True)
    assert torch.autograd.gradgradcheck(output, tensors, fast_mode=True)


def test_a_score_function_replaces_the_dot_product_before_softcap_bias_and_mask():
    case = BY_NAME["grouped"]
    inputs = replace(typed(case, torch.bfloat16).inputs(), softcap=2.0, bias=DenseBias(torch.randn(case.H, case.Q, case.K)))
    as_dot = attend(inputs, OPTIONS).output

    def score(query, key):
        assert key.shape[1] == case.G
        shared = key.repeat_interleave(case.H // case.G, dim=1)
        return inputs.scale * query.float() @ shared.float().mT

    torch.testing.assert_close(attend(replace(inputs, score=score, scale=99.0), OPTIONS).output, as_dot)


@pytest.mark.parametrize("groups", [6, 2])
def test_both_products_are_counted(groups):
    B, H, Q, K, D, V = 2, 6, 5, 7, 8, 4
    query, key, value = torch.randn(B, H, Q, D), torch.randn(B, groups, K, D), torch.randn(B, groups, K, V)
    with FlopCounterMode(display=False) as counted:
        attend(AttentionInputs(query, key, value, Mask(), 1.0), OPTIONS)
    assert counted.get_total_flops() == 2 * B * H * Q * K * (D + V)


def test_a_bias_as_low_as_float32_goes_leaks_nothing_to_hidden_keys():
    inputs = typed(BY_NAME["key_lengths"]).inputs()
    lowest = DenseBias(torch.full((1, 1, 1, 7), torch.finfo(torch.float32).min))
    hidden = ~visible_pairs(inputs.mask, 2, 6, 5, 7)
    weights = attend(replace(inputs, bias=lowest, return_weights=True), OPTIONS).weights
    assert hidden.any()
    assert (weights[hidden] == 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 6, 5))
