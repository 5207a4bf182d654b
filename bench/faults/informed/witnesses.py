"""For each fault of this set calls inside of what its kernel declares. True where a result is wrong."""

from __future__ import annotations

import warnings
from dataclasses import replace

import torch
from calls import (
    Witnesses,
    asking,
    attend,
    backward,
    call,
    changed_between,
    coins,
    differs,
    drawn,
    draws_broken,
    grad_for,
    judged,
    of,
    random,
    value_gradient_of_threads,
)  # fmt: skip
from torch import Tensor

from tfkit.plugin import DenseBias, DistanceBias, LinearBias, Mask

F64, BF16, F16 = torch.float64, torch.bfloat16, torch.float16
WITNESSES = Witnesses()
shows = WITNESSES.shows


def sums_of_weights(module, p: float, H: int, K: int) -> Tensor:
    """The sum of the dropped weights of each of K queries."""
    inputs = call(H=H, Q=K, K=K, D=1, dropout=p)
    return attend(module, replace(inputs, query=torch.zeros_like(inputs.query), value=torch.ones_like(inputs.value))).output


# chunks

WITNESSES |= {
    "a_generator_shared": lambda module: value_gradient_of_threads(module, 1600, 64, 20),
    "a_tail_rows": of(lambda: call(Q=177, K=5), lambda: call(Q=180, K=5)),
    "a_tail_gradients": of(lambda: call(Q=188, K=5)),
    "a_rows_of_mask": of(lambda: call(Q=200, K=9, visible=coins(200, 9))),
    "a_rows_of_segments": of(
        lambda: call(Q=200, K=9, query_segments=(torch.arange(200) // 90)[None], key_segments=(torch.arange(9) // 3)[None])
    ),
    "a_rows_of_distance": of(lambda: call(Q=200, K=9, offset=0, bias=LinearBias(torch.tensor([0.01])))),
    "a_rows_of_bias_gradient": of(
        lambda: call(Q=200, K=9, offset=-180, bias=DistanceBias(torch.linspace(-1, 1, 9)[None].clone(), -4))
    ),
    "a_rows_of_weights": of(lambda: call(Q=352, K=9, weights=True)),
    "a_softcap_large": of(lambda: call(Q=3, K=7, softcap=60.0, spread=40.0)),
    "a_scale_zero": of(lambda: call(Q=3, K=7, scale=0.0)),
    "a_three_axes": of(lambda: call(B=2, H=2, Q=3, K=7, visible=coins(2, 3, 7))),
    "a_offset_int32": of(lambda: call(Q=3, K=7, causal=True, offset=torch.tensor([2**31 + 5]))),
    "a_distance_float32": of(lambda: call(Q=3, K=7, dtype=F64, offset=2**24 + 1, bias=LinearBias(torch.tensor([1e-3])))),
    "a_wide_heads": of(lambda: call(Q=3, K=7, D=320)),
    "a_segment_negative": of(
        lambda: call(Q=3, K=4, query_segments=torch.tensor([[0, -1, -1]]), key_segments=torch.tensor([[0, 0, -1, -1]]))
    ),
    "a_value_beside_query": of(lambda: call(Q=3, K=7), only=("query", "value")),
    "a_bias_beside_value": of(lambda: call(Q=3, K=7, bias=DenseBias(random(1, 1, 3, 7))), only=("value", "bias")),
    "a_groups_of_16": of(lambda: call(H=20, G=1, Q=3, K=7)),
}


@shows
def a_key_visible_strides(module):
    return differs(module, call(3, Q=3, K=7, key_visible=coins(7, 3).T))


@shows
def a_row_sums_stored(module):
    inputs = call(Q=3, K=7, V=128, dtype=F16)
    return differs(module, replace(inputs, value=inputs.value + 60.0), grad=100.0 + grad_for(inputs))


@shows
def a_draw_per_chunk(module):
    keep = drawn(module, call(Q=352, K=64, dropout=0.5))
    return torch.equal(keep[:, :, :176], keep[:, :, 176:])


@shows
def a_p_in_16_bits(module):
    """Of 6 million weights 60 are dropped."""
    return bool((sums_of_weights(module, 1e-5, 6, 1000) > 0.9995).all())


@shows
def a_p_near_1(module):
    """The mean of many outputs is the output."""
    return abs(float(sums_of_weights(module, 0.95, 1, 400).mean()) - 1.0) > 0.2


@shows
def a_seed_in_16_bits(module):
    """Of 2000 draws of 64 coins some are equal."""
    inputs = call(Q=1, K=64, dropout=0.5)
    return len({drawn(module, inputs, None).numpy().tobytes() for _ in range(2000)}) < 2000


@shows
def a_seed_of_last_call(module):
    return draws_broken(module, call(Q=5, K=9, dropout=0.5), lambda: attend(module, call(Q=5, K=9, dropout=0.5)))


@shows
def a_generator_of_process(module):
    """Two layers, backward, and the next step's first layer has the draw of this step's second."""
    inputs = call(Q=5, K=64, V=64, dropout=0.5)
    inputs = asking(replace(inputs, value=torch.eye(64).expand(1, 1, 64, 64)))
    one, two = (attend(module, inputs).output for _ in range(2))
    two.sum().backward()
    one.sum().backward()
    return torch.equal(attend(module, inputs).output > 0, two > 0)


@shows
def a_hidden_chunk(module):
    inputs = call(Q=300, K=9, dropout=0.5)
    hidden = replace(inputs, mask=Mask(causal=True, offset=-200))
    return differs(module, hidden, seed=7, drawn=drawn(module, inputs))


@shows
def a_mask_alive(module):
    lengths = torch.tensor([3])
    return changed_between(module, call(Q=3, K=7, key_lengths=lengths), lambda: lengths.add_(1))


@shows
def a_mkldnn(module):
    before = torch._C._get_mkldnn_enabled()
    try:
        attend(module, asking(call(Q=3, K=7, dtype=BF16))).output.sum().backward()
        return torch._C._get_mkldnn_enabled() != before
    finally:
        torch.backends.mkldnn.set_flags(before)


# parts

WITNESSES |= {
    "b_many_parts": of(lambda: call(Q=2, K=2900)),
    "b_part_edge": of(lambda: call(Q=2, K=100, key_lengths=torch.tensor([89]))),
    "b_part_of_row_0": of(lambda: call(B=18, Q=2, K=100, key_lengths=torch.tensor([20] * 17 + [100]))),
    "b_lengths_uint8": of(lambda: call(B=2, Q=2, K=7, key_lengths=torch.tensor([0, 3], dtype=torch.uint8))),
    "b_softcap_small": of(lambda: call(Q=2, K=7, softcap=0.05)),
    "b_prescaled_rows": of(lambda: call(B=2, H=3, Q=700, K=5, D=12, dtype=BF16, spread=6.0), gradients=False),
    "b_distance_int8": of(
        lambda: call(Q=80, K=80, offset=0, bias=DistanceBias(torch.linspace(-2, 2, 200)[None].clone(), -100))
    ),
    "b_slopes_negative": of(lambda: call(Q=3, K=7, offset=0, bias=LinearBias(torch.tensor([-0.2])))),
    "b_three_axes": of(lambda: call(B=2, H=2, Q=3, K=7, bias=DenseBias(random(2, 3, 7)))),
    "b_one_axis": of(lambda: call(Q=7, K=7, visible=torch.arange(7) % 3 > 0)),
    "b_bias_late_part": of(lambda: call(Q=2, K=400, bias=DenseBias(random(1, 1, 2, 400)))),
    "b_segments_late": of(
        lambda: call(Q=2, K=800, query_segments=torch.tensor([[0, 1]]), key_segments=(torch.arange(800) % 2)[None])
    ),
    "b_reach_left": of(lambda: call(Q=1, K=300, window=(200, 0), offset=287)),
    "b_lse_of_many": of(lambda: call(Q=2, K=2200, lse=True), gradients=False),
    "b_heads_over_128": of(lambda: call(H=130, Q=2, K=5)),
    "b_batch_over_512": of(lambda: call(B=520, Q=2, K=5, key_lengths=1 + torch.arange(520) % 5)),
    "b_window_int": of(lambda: call(Q=2, K=7, causal=True, offset=2**31 + 5)),
    "b_all_hidden_bias": of(lambda: call(Q=2, K=7, key_lengths=torch.tensor([0]), bias=DenseBias(torch.randn(1, 1, 2, 7)))),
    "b_level_floor": of(lambda: call(Q=2, K=7, bias=DenseBias(random(1, 1, 2, 7) - 3.0e5)), gradients=False),
}


@shows
def b_far_part(module):
    """Part 0 has a share of e^-95, and values of 1e40."""
    inputs = call(Q=2, K=100, dtype=F64, bias=DenseBias(95.0 * (torch.arange(100) >= 88).expand(1, 1, 2, 100).float()))
    inputs.value[:, :, :88] *= 1e40
    return differs(module, inputs, gradients=False)


# groups

WITNESSES |= {
    "c_last_key": of(lambda: call(Q=2, K=641)),
    "c_group_order": of(lambda: call(H=16, G=2, Q=1, K=7)),
    "c_bias_clamped": of(lambda: call(Q=2, K=7, bias=DenseBias(random(1, 1, 2, 7) + 2.0e5), lse=True), gradients=False),
    "c_block_groups": of(lambda: call(H=4, G=2, Q=2, K=700)),
    "c_block_mask": of(lambda: call(B=2, Q=3, K=700, query_lengths=torch.tensor([3, 2]))),
    "c_score_softcap": of(lambda: call(Q=3, K=7, softcap=0.01, spread=3000.0)),
    "c_rows_32768": of(lambda: call(H=9, G=1, Q=4000, K=3, D=2, V=2), gradients=False),
    "c_scale_sign": of(lambda: call(Q=1, K=7, scale=-0.5)),
    "c_half_product": of(lambda: call(Q=3, K=7, dtype=F16, scale=3.0e-4, spread=1.5e4), gradients=False),
}


@shows
def c_weights_path(module):
    inputs = call(Q=3, K=700)
    plain, beside = (attend(module, replace(inputs, return_weights=wanted)).output for wanted in (False, True))
    return not torch.equal(plain, beside)


@shows
def c_kept_block(module):
    keep = drawn(module, call(Q=2, K=960, dropout=0.5))
    return torch.equal(keep[..., :320], keep[..., 320:640])


@shows
def c_total_dropped(module):
    """The sum of the dropped weights varies."""
    return float(sums_of_weights(module, 0.5, 1, 700).std()) < 1e-4


@shows
def c_score_features(module):
    inputs = call(Q=3, K=7, D=8)
    key = random(1, 1, 7, 16)

    def score(query, key):
        return query @ key[..., :8].mT + query.sum(-1, keepdim=True) * key[..., 8:].sum(-1)[:, :, None]

    want = torch.softmax(score(inputs.query, key), -1) @ inputs.value
    try:
        got = attend(module, replace(inputs, key=key, score=score)).output
    except RuntimeError:
        return True
    return not torch.allclose(got, want, rtol=1e-4, atol=1e-5)


@shows
def c_coins_of_batch(module):
    keep = drawn(module, call(2, 4, Q=400, K=400, dropout=0.5), keys=30)
    return torch.equal(keep[0], keep[1])


@shows
def c_coins_of_heads(module):
    keep = drawn(module, call(H=18, Q=8, K=20, dropout=0.5))
    return torch.equal(keep[:, 0], keep[:, 16])


@shows
def c_weights_detached(module):
    answer = attend(module, asking(call(Q=2, K=700, weights=True)))
    return not answer.weights.requires_grad


@shows
def c_precision(module):
    before = torch.get_float32_matmul_precision()
    try:
        attend(module, call(Q=2, K=700))
        return torch.get_float32_matmul_precision() != before
    finally:
        torch.set_float32_matmul_precision(before)


@shows
def c_tail_block_uninitialised(module):
    """Memory that held NaN is used again, in one of some sizes."""
    for rows in (3, 40, 700):
        inputs = call(Q=rows, K=2600, V=16)
        for _ in range(3):
            used = [torch.full((1, 1, rows, 16), torch.nan) for _ in range(8)]
            del used
            if bool(attend(module, inputs).output.isnan().any()):
                return True
    return False


# tables

WITNESSES |= {
    "d_workspace_cap": of(lambda: call(H=3, Q=600, K=600, D=2, V=2), gradients=False),
    "d_segments_int32": of(
        lambda: call(
            Q=2, K=4, query_segments=torch.tensor([[1, 2**32 + 1]]), key_segments=torch.tensor([[1, 1, 2**32 + 1, 2**33 + 1]])
        )
    ),
    "d_arange_int8": of(lambda: call(Q=2, K=200, key_lengths=torch.tensor([100], dtype=torch.int8))),
    "d_level_cap": of(lambda: call(Q=2, K=7, scale=1.0, spread=5.0e4), gradients=False),
    "d_value_tiles": of(lambda: call(Q=2, K=7, V=300)),
    "d_table_reused": of(lambda: call(B=20, Q=5, K=30, causal=True, offset=torch.arange(20))),
    "d_prepared_batch": of(lambda: call(B=410, Q=2, K=5, key_lengths=1 + torch.arange(410) % 5)),
    "d_distance_heads": of(lambda: call(H=34, Q=2, K=5, offset=0, bias=DistanceBias(random(34, 5), -2))),
}


@shows
def d_band_key(module):
    attend(module, call(Q=9, K=9, window=(2, 0), offset=0))
    return differs(module, call(Q=9, K=9, window=(5, 0), offset=0))


@shows
def d_abs_in_place(module):
    attend(module, call(Q=9, K=9, offset=0, bias=LinearBias(torch.tensor([0.1]))))
    return differs(module, call(Q=9, K=9, offset=0, bias=DistanceBias(torch.linspace(-1, 1, 7)[None].clone(), -3)))


@shows
def d_slopes_ends(module):
    one, other = (LinearBias(torch.tensor([0.1, middle, 0.3])) for middle in (0.2, 1.0))
    attend(module, call(H=3, Q=9, K=9, offset=0, bias=one))
    return differs(module, call(H=3, Q=9, K=9, offset=0, bias=other))


@shows
def d_slopes_alive(module):
    slopes = torch.tensor([0.1, 0.3])
    inputs = call(H=2, Q=9, K=9, offset=0, bias=LinearBias(slopes))
    attend(module, inputs)
    slopes.mul_(4.0)
    return differs(module, inputs)


@shows
def d_lse_buffer(module):
    """Another call of the same sizes comes before the backward pass."""
    inputs, other = (asking(call(2, Q=2500, K=5, D=4, seed=seed, spread=2.0)) for seed in (0, 1))
    answer = attend(module, inputs)
    attend(module, other)
    return judged(lambda: answer, module, inputs)


@shows
def d_start_16_bits(module):
    bias = DistanceBias(torch.linspace(-1, 1, 7)[None].clone(), -3)
    attend(module, call(Q=9, K=9, offset=3, bias=bias))
    return differs(module, call(Q=9, K=9, offset=2**16 + 3, bias=bias))


@shows
def d_place_20_bits(module):
    keep = drawn(module, call(2, 4, Q=512, K=512, dropout=0.5), keys=30)
    return torch.equal(keep[0], keep[1])


@shows
def d_row_stride(module):
    """Head 1 of batch row 0 and head 0 of batch row 1."""
    keep = drawn(module, call(2, 2, Q=256, K=256, dropout=0.5), keys=30)
    return torch.equal(keep[0, 1], keep[1, 0])


@shows
def d_tile_256(module):
    keep = drawn(module, call(Q=20, K=400, dropout=0.5))
    return torch.equal(keep[0, 0, :-1, 256:], keep[0, 0, 1:, :144])


@shows
def d_split_by_batch(module):
    inputs = call(B=6, H=3, Q=20, K=90)
    whole = attend(module, inputs).output
    alone = [
        attend(
            module, replace(inputs, query=inputs.query[b : b + 1], key=inputs.key[b : b + 1], value=inputs.value[b : b + 1])
        ).output
        for b in range(6)
    ]
    return not torch.equal(whole, torch.cat(alone))


@shows
def d_mask_kept(module):
    lengths = torch.tensor([3])
    inputs = call(Q=3, K=7, key_lengths=lengths)
    attend(module, inputs)
    lengths.add_(1)
    return differs(module, inputs)


@shows
def d_key_kept(module):
    """A key/value cache that is written in place between two steps."""
    inputs = call(Q=3, K=7, dtype=BF16)
    attend(module, inputs)
    inputs.key[:, :, 4:] = 1.5
    return differs(module, inputs)


@shows
def d_warnings(module):
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        before = list(warnings.filters)
        attend(module, call(Q=3, K=7))
        return list(warnings.filters) != before


@shows
def d_p_rounded(module):
    """Of a million weights 400 are dropped."""
    return bool((sums_of_weights(module, 4e-4, 1, 1000) > 0.9999).all())


@shows
def d_backward_rows(module):
    return draws_broken(module, call(6, Q=5, K=9, dropout=0.5))


@shows
def a_output_ring(module):
    first = call(Q=3, K=7)
    output = attend(module, first).output
    kept = output.clone()
    for seed in (1, 2, 3):
        attend(module, call(Q=3, K=7, seed=seed))
    return not torch.equal(output, kept)


@shows
def a_zigzag(module):
    """The same call again gives the same gradients, bit for bit."""
    inputs = asking(call(H=2, Q=600, K=40))
    one, other = (backward(attend(module, inputs).output, inputs, grad_for(inputs)) for _ in range(2))
    return not all(torch.equal(one[name], other[name]) for name in one)


@shows
def b_four_terms(module):
    visible = torch.rand(3, 7, generator=torch.Generator().manual_seed(1)) < 0.6
    shown = torch.arange(7)[None] != 2
    lengths = torch.tensor([6])
    mask = {"causal": True, "window": (5, None), "offset": 4, "key_lengths": lengths, "key_visible": shown, "visible": visible}
    return differs(module, call(Q=3, K=7, **mask))


@shows
def c_num_threads(module):
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        attend(module, call(Q=2, K=700))
        return torch.get_num_threads() != 2
    finally:
        torch.set_num_threads(before)


@shows
def d_workspace_inference(module):
    with torch.inference_mode():
        attend(module, call(Q=3, K=7))
    return differs(module, call(Q=3, K=7))
