"""For each fault of this set calls inside of what its kernel declares. True where a result is wrong."""

from __future__ import annotations

from dataclasses import replace

import torch
from calls import (
    OPTIONS,
    Witnesses,
    asking,
    attend,
    call,
    differs,
    drawn,
    grad_for,
    ints,
    of,
    overwritten,
    random,
    wrong_after_inference,
)  # fmt: skip

from tfkit.plugin import DenseBias, Shapes

F64, BF16 = torch.float64, torch.bfloat16
WITNESSES = Witnesses()
shows = WITNESSES.shows


# sizes

WITNESSES |= {
    "six_last_query_tile": of(lambda: call(H=2, Q=100)),
    "six_feature_tail": of(lambda: call(H=2, D=12)),
    "six_decode_tail": of(lambda: call(H=2, Q=1, K=100), gradients=False),
    "six_bias_from_chunk": of(lambda: call(H=2, Q=80, bias=("distance", 9, -4), offset=0)),
    "six_keys_repeated": of(lambda: call(H=4, G=2)),
    "six_delta_over_query_features": of(lambda: call(H=2, D=8, V=16)),
    "six_stride_of_rows": of(lambda: replace(call(2, 2), value=random(2, 6, 2, 8).transpose(1, 2)), gradients=False),
}


@shows
def six_one_tile_more(module):
    try:
        return differs(module, call(H=2, K=120))
    except IndexError:  # of the largest score among none
        return True


# masks and positions

WITNESSES |= {
    "six_tile_inside_longest_row": of(lambda: call(2, 2, K=200, key_lengths=ints(200, 50))),
    "six_interval_of_last_query": of(lambda: call(H=2, Q=3, K=40, window=(5, None), offset=20), gradients=False),
    "six_window_over_causal": of(lambda: call(H=2, causal=True, window=(2, 1), offset=1)),
    "six_query_length_from_tile": of(lambda: call(H=2, Q=80, query_lengths=ints(76))),
    "six_visible_over_padding": of(
        lambda: call(H=2, key_visible=torch.arange(6)[None] < 4, visible=torch.arange(6) != torch.arange(4)[:, None])
    ),
    "six_decode_bias_from_interval": of(
        lambda: call(H=2, Q=1, K=30, window=(5, None), bias=("distance", 9, -6), offset=20), gradients=False
    ),
    "six_blind_row_backward": of(lambda: call(H=2, query_lengths=ints(2))),
    "six_blind_row_lse": of(lambda: call(H=2, query_lengths=ints(2), lse=True), gradients=False),
}


# dropout


@shows
def six_draw_of_next_row_of_tiles(module):
    draw = drawn(module, call(H=2, Q=144, K=40, dropout=0.5))
    return torch.equal(draw[:, :, :72], draw[:, :, 72:])


@shows
def six_draw_of_group(module):
    draw = drawn(module, call(H=4, G=2, Q=20, K=40, dropout=0.5))
    return torch.equal(draw[:, 0], draw[:, 1])


@shows
def six_sum_after_dropout(module):
    inputs = call(H=2, K=20, dropout=0.4)
    return differs(module, inputs, gradients=False, seed=7, drawn=drawn(module, inputs, 7))


@shows
def six_seed_of_process(module):
    inputs = call(H=2, Q=20, K=40, dropout=0.5)
    return torch.equal(drawn(module, inputs, 7), drawn(module, inputs, None))


# state and memory


@shows
def six_sight_by_shapes(module):
    """Two steps of decoding with a cache of one size."""
    for offset in (2, 5):
        inputs = call(H=2, Q=2, K=9, causal=True, offset=offset)
        shapes = Shapes(1, 2, 2, 9, inputs.query.dtype, inputs.query.device)
        inputs = replace(inputs, prepared=module.prepare(inputs.mask, None, shapes, OPTIONS))
    return differs(module, inputs)


WITNESSES["six_output_in_block"] = lambda m: overwritten(m, call(H=2), call(H=2, seed=1))
WITNESSES["six_block_of_inference"] = lambda m: wrong_after_inference(m, call(H=2))


@shows
def six_keys_by_address(module):
    inputs = call(H=2, dtype=BF16)
    attend(module, inputs)
    inputs.key.copy_(random(1, 2, 6, 8))
    return differs(module, inputs, gradients=False)


@shows
def six_gradient_of_output_masked(module):
    inputs = call(H=2, query_lengths=ints(2))
    grad = grad_for(inputs)
    before = grad.clone()
    attend(module, asking(inputs)).output.backward(grad)
    return not torch.equal(grad, before)


# dtypes and numbers


def _far_above() -> torch.Tensor:
    """Keys, the last of which has scores far above those of the others."""
    return random(1, 2, 6, 8) * torch.tensor([1.0] * 5 + [1000.0])[:, None]


WITNESSES |= {
    "six_distance_in_16_bits": of(lambda: call(H=8, K=600, bias="linear", offset=596)),
    "six_top_of_hidden_keys": of(
        lambda: replace(call(H=2, key_visible=torch.arange(6)[None] < 5), key=_far_above()), gradients=False
    ),
    "six_query_scaled_in_16_bits": of(lambda: call(H=2, spread=8.0, dtype=BF16), gradients=False),
    "six_lse_in_single": of(lambda: call(H=2, dtype=F64)),
}


@shows
def six_nan_to_zero(module):
    inputs = call(H=2)
    inputs.query[:, :, 1] = torch.nan
    return not attend(module, asking(inputs)).output[:, :, 1].isnan().all()


# gradients

WITNESSES |= {
    "six_bias_gradient_stored": of(lambda: call(H=2, Q=80, bias=DenseBias(random(1, 2, 1, 6)))),
    "six_weights_cut_off": lambda m: not attend(m, asking(call(H=2, weights=True))).weights.requires_grad,
    "six_bias_gradient_capped": of(lambda: call(H=2, bias="dense", softcap=1.5)),
    "six_distances_written_once": of(lambda: call(H=2, bias=("distance", 5, -2), offset=0)),
    "six_bias_learns_alone": of(lambda: call(H=2, bias="dense"), only=("bias",)),
}
