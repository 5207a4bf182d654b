"""Masks and biases as tensors, against plain loops over rule A4 and against Hugging Face's T5 bias."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import pytest
import torch
from torch.fx.experimental.symbolic_shapes import ShapeEnv

from tfkit.attention.rendering import always, no_fully_masked_row
from tfkit.plugin import (
    AttentionInputs,
    DenseBias,
    DistanceBias,
    LinearBias,
    Mask,
    Shapes,
    dense_bias,
    expand_heads,
    select_rows,
    shapes_of,
    unmask_empty_rows,
    visible,
)
from tfkit_conformance.attention.reference import bias_pairs, visible_pairs
from tfkit_conformance.attention.table import CASES

B, H, Q, K = 2, 3, 5, 7
SHAPES = Shapes(B, H, Q, K, torch.float32, torch.device("cpu"))
LENGTHS = torch.tensor([2, 4])


def shapes_of_case(case):
    return Shapes(case.B, case.H, case.Q, case.K, torch.float32, torch.device("cpu"))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a4_visible_equals_the_loops_over_positions(case):
    for seed in range(5):
        mask = replace(case, seed=seed).mask()
        wanted = visible_pairs(mask, case.B, case.H, case.Q, case.K)
        rendered = visible(mask, shapes_of_case(case))
        assert torch.equal(torch.ones_like(wanted) if rendered is None else rendered.expand_as(wanted), wanted)


@pytest.mark.parametrize(
    ("mask", "shape"),
    [
        (Mask(causal=True, offset=0), (1, 1, Q, K)),
        (Mask(causal=True, offset=LENGTHS), (B, 1, Q, K)),
        (Mask(key_lengths=LENGTHS), (B, 1, 1, K)),
        (Mask(query_lengths=LENGTHS), (B, 1, Q, 1)),
        (Mask(key_visible=torch.ones(B, K, dtype=torch.bool)), (B, 1, 1, K)),
        (Mask(causal=True, offset=0, key_lengths=LENGTHS), (B, 1, Q, K)),
        (Mask(visible=torch.ones(Q, K, dtype=torch.bool)), (1, 1, Q, K)),
    ],
)
def test_a_mask_is_as_small_as_its_terms_allow(mask, shape):
    assert visible(mask, SHAPES).shape == shape


@pytest.mark.parametrize(
    "mask",
    [
        Mask(),
        Mask(causal=True, offset=K - 1),
        Mask(window=(None, None), offset=0),
        Mask(window=(Q + 1, K), offset=2),
        Mask(offset=3),
    ],
)
def test_a_mask_that_hides_no_key_is_removed(mask):
    assert visible(mask, SHAPES) is None
    assert visible_pairs(mask, B, H, Q, K).all()


@pytest.mark.parametrize("queries", [1, 2, 3])
@pytest.mark.parametrize("keys", [1, 2, 4])
def test_a4_every_small_window_at_every_offset(queries, keys):
    """Sides of every size, negative ones too, alone and with causal; what hides nothing is left out, and nothing else is."""
    shapes = Shapes(1, 1, queries, keys, torch.float32, torch.device("cpu"))
    sides = (None, -1, 0, 1, 2, 5)
    for causal, left, right, offset in product((False, True), sides, sides, range(-2, 5)):
        mask = Mask(causal=causal, window=(left, right), offset=offset)
        wanted = visible_pairs(mask, 1, 1, queries, keys)
        rendered = visible(mask, shapes)
        assert (rendered is None) == bool(wanted.all()), mask
        assert rendered is None or torch.equal(rendered, wanted), mask


def test_lengths_out_of_range_mean_the_clamped_length():
    far, clamped = torch.tensor([-4, K + 9]), torch.tensor([0, K])
    assert torch.equal(visible(Mask(key_lengths=far), SHAPES), visible(Mask(key_lengths=clamped), SHAPES))


@pytest.mark.parametrize(
    ("mask", "sees"),
    [
        (Mask(), True),
        (Mask(causal=True, offset=0), True),
        (Mask(causal=True, offset=3), True),
        (Mask(causal=True, offset=-1), False),
        (Mask(causal=True, offset=LENGTHS), False),
        (Mask(causal=True, offset=0, key_lengths=LENGTHS), False),
    ],
)
def test_rows_without_mask_terms_are_never_fully_masked(mask, sees):
    assert no_fully_masked_row(mask) is sees


def test_every_query_sees_is_never_claimed_wrongly():
    claimed = 0
    for case in CASES:
        mask = case.mask()
        if no_fully_masked_row(mask):
            claimed += 1
            assert visible_pairs(mask, case.B, case.H, case.Q, case.K).any(-1).all(), case.name
    assert claimed > 5


def test_a5_blind_rows_are_opened_and_their_gradient_is_cut_off():
    shown = torch.tensor([[True, False], [False, False]])[None, None]
    opened, rows = unmask_empty_rows(shown)
    assert torch.equal(opened[0, 0], torch.tensor([[True, False], [True, True]]))
    output = torch.randn(1, 1, 2, 3, requires_grad=True)
    selected = select_rows(output, rows)
    assert (selected[0, 0, 1] == 0).all()
    (gradient,) = torch.autograd.grad(selected, output, torch.full_like(output, torch.inf))
    assert (gradient[0, 0, 1] == 0).all()
    assert select_rows(output, None) is output


@pytest.mark.parametrize("offset", [0, 3, torch.tensor([4, -2])], ids=str)
@pytest.mark.parametrize(
    "bias",
    [DenseBias(torch.randn(H, 1, K)), LinearBias(torch.rand(H)), DistanceBias(torch.randn(H, 4), -2)],
    ids=lambda bias: type(bias).__name__,
)
def test_dense_bias_equals_the_bias_pair_by_pair(bias, offset):
    rendered = dense_bias(bias, offset, SHAPES).expand(B, H, Q, K)
    assert torch.equal(rendered.float(), bias_pairs(bias, offset, B, H, Q, K).float())


@pytest.mark.parametrize(
    ("queries", "values", "bias"),
    [
        (torch.float64, torch.float32, torch.float64),
        (torch.float32, torch.float32, torch.float32),
        (torch.bfloat16, torch.bfloat16, torch.bfloat16),
        (torch.bfloat16, torch.float32, torch.float32),
    ],
)
def test_a_distance_bias_has_the_dtype_of_its_values_and_for_float64_queries_float64(queries, values, bias):
    shapes = Shapes(B, H, Q, K, queries, torch.device("cpu"))
    assert dense_bias(DistanceBias(torch.randn(H, 4).to(values), -2), 0, shapes).dtype == bias


def test_shapes_are_read_off_the_call():
    key = torch.zeros(2, 3, 7, 4)
    inputs = AttentionInputs(torch.zeros(2, 6, 5, 4, dtype=torch.float64), key, key, Mask(), 0.5)
    assert shapes_of(inputs) == Shapes(2, 6, 5, 7, torch.float64, torch.device("cpu"))
    assert shapes_of(replace(inputs, query=inputs.query.to("meta"))).device == torch.device("meta")


@pytest.mark.parametrize(
    "mask",
    [
        Mask(causal=True, offset=0),
        Mask(causal=True, offset=LENGTHS.to("meta")),
        Mask(key_lengths=LENGTHS.to("meta")),
        Mask(query_lengths=LENGTHS.to("meta")),
    ],
)
def test_masks_and_biases_are_made_on_the_device_of_the_call(mask):
    shapes = replace(SHAPES, device=torch.device("meta"))
    assert visible(mask, shapes).device.type == "meta"
    assert dense_bias(LinearBias(torch.ones(H, device="meta")), mask.offset, shapes).device.type == "meta"


def test_always_is_true_only_for_conditions_that_hold_for_every_size():
    length = ShapeEnv().create_unbacked_symint()
    torch._check(length >= 3)
    assert always(length >= 2)
    assert not always(length >= 4)
    assert always(True)
    assert not always(False)


@pytest.mark.parametrize("past", [0, 4])
def test_a_distance_bias_is_t5s_relative_position_bias_bit_for_bit(past):
    from transformers.models.t5.modeling_t5 import T5Attention, T5Config

    config = T5Config(d_model=12, d_kv=4, num_heads=H, relative_attention_num_buckets=8, relative_attention_max_distance=10)
    theirs = T5Attention(config, has_relative_attention_bias=True)
    low, span = -20, 41
    buckets = theirs._relative_position_bucket(torch.arange(low, low + span), True, 8, 10)
    values = theirs.relative_attention_bias.weight[buckets].T
    wanted = theirs.compute_bias(past + Q, K)[:, :, past:]
    assert torch.equal(dense_bias(DistanceBias(values, low), past, SHAPES), wanted)


def test_the_gradient_of_a_half_precision_distance_bias_adds_up_in_float32():
    shapes = Shapes(1, 1, 64, 64, torch.bfloat16, torch.device("cpu"))
    values = torch.zeros(1, 1, dtype=torch.bfloat16, requires_grad=True)
    dense_bias(DistanceBias(values, 0), 0, shapes).sum().backward()
    assert values.grad.item() == 64 * 64  # added one by one in bfloat16 this stops at 256


def test_a1_query_head_h_reads_group_h_div_r():
    key = torch.arange(2 * 2 * 3 * 4.0).view(2, 2, 3, 4)
    expanded = expand_heads(key, 6)
    assert expanded.shape == (2, 6, 3, 4)
    for head in range(6):
        assert torch.equal(expanded[:, head], key[:, head // 3])
    assert expand_heads(key, 2) is key
