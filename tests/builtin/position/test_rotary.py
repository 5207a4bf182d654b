from __future__ import annotations

import cmath

import pytest
import torch
from transformers import GPTJConfig, LlamaConfig
from transformers.models.gptj.modeling_gptj import GPTJAttention, apply_rotary_pos_emb as gptj_rotate
from transformers.models.llama.modeling_llama import LlamaRotaryEmbedding, apply_rotary_pos_emb as llama_rotate

from tfkit.builtin.position.entries import RotaryOptions, unsupported
from tfkit.builtin.position.rotary import rotary_half, rotary_interleaved
from tfkit.plugin.model_parts import PositionSite

SITE = PositionSite(24, 3, 8)
BUILDS = pytest.mark.parametrize("make", [rotary_half, rotary_interleaved])


def rotated(make, query, key, span, **options):
    scheme = make(RotaryOptions(**options), PositionSite(0, query.shape[1], query.shape[3]))
    return scheme.rotate(query, key, scheme.prepare(span))


def drawn(length: int = 6, head_dim: int = 8, dtype: torch.dtype = torch.float64) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(0)
    return torch.randn(2, 3, length, head_dim, dtype=dtype), torch.randn(2, 1, length, head_dim, dtype=dtype)


@BUILDS
def test_equals_complex_multiplication_element_by_element(make, span_of):
    query, key = drawn()
    turned, _ = rotated(make, query, key, span_of(6, offset=5, dtype=torch.float64), base=100.0, dims=6)
    for t in range(6):
        for i in range(3):
            a, b = (i, i + 3) if make is rotary_half else (2 * i, 2 * i + 1)
            turn = cmath.exp(1j * (5 + t) * 100 ** (-2 * i / 6))
            product = complex(query[1, 2, t, a], query[1, 2, t, b]) * turn
            assert turned[1, 2, t, a].item() == pytest.approx(product.real, abs=1e-12)
            assert turned[1, 2, t, b].item() == pytest.approx(product.imag, abs=1e-12)


@BUILDS
@pytest.mark.parametrize("shift", [1, 1000, 2**20 - 6])
def test_scores_depend_only_on_the_difference_of_positions(make, shift, span_of):
    query, key = drawn(dtype=torch.float32)

    def scores(offset: int) -> torch.Tensor:
        turned_query, turned_key = rotated(make, query, key, span_of(6, offset=offset))
        return turned_query.double() @ turned_key.double().transpose(2, 3)

    # Each of 8 products has a few roundings of numbers of unit size, wherever it stands.
    bound = 8 * 2**-24 * (query.abs().double() @ key.abs().double().transpose(2, 3) + 8).max()
    assert (scores(shift) - scores(0)).abs().max() <= bound


@BUILDS
def test_the_first_position_is_left_alone_and_others_are_turned(make, span_of):
    query, key = drawn()
    near, _ = rotated(make, query, key, span_of(6, offset=0))
    far, _ = rotated(make, query, key, span_of(6, offset=1))
    assert torch.equal(near[:, :, 0], query[:, :, 0])
    assert (far[:, :, 0] - query[:, :, 0]).abs().max() > 0.1


@BUILDS
def test_lengths_are_kept(make, span_of):
    query, key = drawn()
    for before, after in zip((query, key), rotated(make, query, key, span_of(6, dtype=torch.float64)), strict=True):
        torch.testing.assert_close(after.norm(dim=-1), before.norm(dim=-1))


def test_the_two_layouts_are_one_another_in_another_order(span_of):
    query, key = drawn()
    order = [0, 4, 1, 5, 2, 6, 3, 7]  # the place in the half layout of each feature of the interleaved one
    half = rotated(rotary_half, query, key, span_of(6, dtype=torch.float64))
    interleaved = rotated(rotary_interleaved, query[..., order], key[..., order], span_of(6, dtype=torch.float64))
    assert all(torch.equal(one[..., order], other) for one, other in zip(half, interleaved, strict=True))


@BUILDS
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_partial_leaves_the_rest_untouched_and_turns_the_first_like_a_small_head(make, dtype, span_of):
    query, key = (tensor.to(dtype) for tensor in drawn())
    partial = rotated(make, query, key, span_of(6, dtype=dtype), dims=4)
    small = rotated(make, query[..., :4], key[..., :4], span_of(6, dtype=dtype))
    for before, after, alone in zip((query, key), partial, small, strict=True):
        assert torch.equal(after[..., 4:], before[..., 4:])
        assert torch.equal(after[..., :4], alone)
        assert not torch.equal(after[..., :4], before[..., :4])


@BUILDS
def test_keys_that_start_elsewhere_have_positions_of_their_own(make, span_of):
    query, key = drawn()
    query_only, _ = rotated(make, query, key, span_of(6, offset=4, dtype=torch.float64))
    _, key_only = rotated(make, query, key, span_of(6, offset=0, dtype=torch.float64))
    both = rotated(make, query, key, span_of(6, keys=6, offset=4, key_start=0, dtype=torch.float64))
    assert torch.equal(both[0], query_only)
    assert torch.equal(both[1], key_only)


def test_half_is_llamas(span_of):
    query, key = drawn(length=40, dtype=torch.float32)
    peer = LlamaRotaryEmbedding(LlamaConfig(hidden_size=24, num_attention_heads=3, head_dim=8))
    expected = llama_rotate(query, key, *peer(query, torch.arange(40).unsqueeze(0)))
    for ours, theirs in zip(rotated(rotary_half, query, key, span_of(40)), expected, strict=True):
        # The peer rounds angles of up to 40 radians to float32.
        assert (ours - theirs).abs().max() <= 3 * 40 * 2**-24 * query.abs().max() * 2


def test_interleaved_is_gptjs(span_of):
    query, key = drawn(length=40, dtype=torch.float32)
    peer = GPTJAttention(GPTJConfig(n_embd=24, n_head=3, rotary_dim=4, n_positions=40), layer_idx=0)
    sine, cosine = peer.embed_positions[None].chunk(2, dim=-1)
    for before, ours in zip((query, key), rotated(rotary_interleaved, query, key, span_of(40), dims=4), strict=True):
        turned = gptj_rotate(before[..., :4].transpose(1, 2), sine, cosine).transpose(1, 2)
        theirs = torch.cat((turned, before[..., 4:]), dim=-1)
        assert (ours - theirs).abs().max() <= 3 * 40 * 2**-24 * query.abs().max() * 2


def test_bfloat16_is_rounded_once(span_of):
    query, key = (tensor.bfloat16() for tensor in drawn(length=50))
    ours, _ = rotated(rotary_half, query, key, span_of(50, dtype=torch.bfloat16))
    exact, _ = rotated(rotary_half, query.double(), key.double(), span_of(50, dtype=torch.float64))
    assert ours.dtype is torch.bfloat16
    assert ((ours.double() - exact).abs() <= torch.finfo(torch.bfloat16).eps / 2 * exact.abs() + 2**-20).all()


@pytest.mark.parametrize(
    ("options", "site", "expected_reason"),
    [
        ({}, PositionSite(0, 3, 7), "head_dim 7 is odd"),
        ({"dims": 3}, SITE, "`dims` 3 is odd"),
        ({"dims": 10}, SITE, "`dims` 10 is more than head_dim 8"),
        ({"dims": 2, "scaling": {"kind": "ntk", "factor": 2.0}}, SITE, "`dims` is 2"),
    ],
)
def test_reasons_name_the_numbers(options, site, expected_reason):
    (reason,) = unsupported(RotaryOptions(**options), site)
    assert expected_reason in reason


def test_supported_calls_are_not_refused():
    for options in ({}, {"dims": 8}, {"dims": 2}, {"scaling": {"kind": "ntk", "factor": 2.0}}):
        assert unsupported(RotaryOptions(**options), SITE) == ()
