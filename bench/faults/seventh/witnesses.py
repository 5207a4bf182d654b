"""For each fault of this set calls inside of what its kernel declares. True where a result is wrong."""

from __future__ import annotations

import torch
from calls import (
    OPTIONS,
    Witnesses,
    asking,
    attend,
    backward,
    call,
    differs,
    drawn,
    draws_broken,
    grad_for,
    in_threads,
    ints,
    of,
    overwritten,
    random,
    wrong_after_inference,
)  # fmt: skip

from tfkit.plugin import DenseBias

BF16 = torch.bfloat16
WITNESSES = Witnesses()
shows = WITNESSES.shows

WITNESSES |= {
    "ragged_tail_of_leaves": of(lambda: call(H=2, Q=3, K=70)),
    "ragged_features_from_64": of(lambda: call(H=2, Q=3, D=80)),
    "ragged_odd_leaf": of(lambda: call(H=2, Q=3, K=112)),
    "ragged_eight_leaves_back": of(lambda: call(H=2, Q=3, K=500)),
    "ragged_last_block_moved": of(lambda: call(H=2, Q=70)),
    "ragged_one_key": of(lambda: call(H=2, Q=3, K=1, lse=True)),
    "ragged_order_of_groups": of(lambda: call(H=4, G=2, Q=3)),
    "ragged_ends_at_empty_block": of(lambda: call(2, 2, Q=3, key_lengths=ints(0, 5))),
    "ragged_causal_from_the_end": of(lambda: call(2, 2, Q=3, causal=True, offset=1, key_lengths=ints(6, 4))),
    "ragged_window_over_causal": of(lambda: call(H=2, causal=True, window=(2, 1), offset=1)),
    "ragged_one_key_at_least": of(lambda: call(2, 2, Q=3, key_lengths=ints(5, 0))),
    "ragged_segments_in_order": of(
        lambda: call(H=2, query_segments=ints(0, 1, 1, -1)[None], key_segments=ints(0, 0, 1, 1, 1, -1)[None])
    ),
    "ragged_keys_of_first_head": of(
        lambda: call(H=2, visible=torch.tensor([[1, 1, 0, 0, 0, 0], [0, 0, 0, 1, 1, 1]]).bool()[:, None])
    ),
    "ragged_places_as_positions": of(
        lambda: call(H=2, bias="linear", offset=0, key_visible=torch.tensor([[1, 0, 0, 1, 1, 1]]).bool())
    ),
    "ragged_gradient_of_coins": lambda m: draws_broken(m, call(H=2, Q=6, dropout=0.4)),
    "ragged_bias_in_storage": of(lambda: call(H=2, Q=8, dtype=BF16, bias=DenseBias(20.0 * random(2, 8, 6)))),
    "ragged_merge_by_left": of(lambda: call(H=2, Q=8, K=100, spread=100.0)),
    "ragged_query_prescaled": of(lambda: call(H=2, Q=8, K=20, dtype=BF16, spread=10.0)),
    "ragged_bias_of_first_head": of(lambda: call(2, 3, bias=DenseBias(random(2, 1, 4, 6)))),
    "ragged_keys_of_last_block": of(lambda: call(H=2, Q=70)),
    "ragged_output_in_memory": lambda m: overwritten(m, call(seed=1), call(seed=2)),
    "ragged_memory_of_inference": lambda m: wrong_after_inference(m, call(H=2)),
    "ragged_bias_under_cap": of(lambda: call(H=2, bias="dense", softcap=1.0)),
}


@shows
def ragged_coins_of_one_head(m):
    factors = drawn(m, call(2, 3, Q=8, K=20, D=4, dropout=0.5))
    return torch.equal(factors[:, 0], factors[:, 1])


@shows
def ragged_initial_seed(m):
    inputs = call(H=2, Q=8, K=20, dropout=0.5)
    return torch.equal(attend(m, inputs, seed=7).output, attend(m, inputs).output)


@shows
def ragged_memory_of_all_threads(m):
    inputs = [call(Q=4, K=40, seed=number) for number in range(3)]
    want, wrong = [attend(m, one).output for one in inputs], []

    def work(number):
        for _ in range(300):
            wrong.append(not torch.equal(m.attend(inputs[number], OPTIONS).output, want[number]))

    in_threads(work)
    return any(wrong)


@shows
def ragged_keys_of_last_call(m):
    """The key of a cache that a step writes in place."""
    inputs = call(H=2, Q=1)
    attend(m, inputs)
    inputs.key[:, :, -1] = 1.0
    return differs(m, inputs, gradients=False)


@shows
def ragged_nan_to_zero(m):
    inputs = call(H=2)
    inputs.query[0, 0, 1, 0] = torch.nan
    return not bool(attend(m, inputs).output[0, 0, 1].isnan().all())


@shows
def ragged_gradient_of_blind_query(m):
    inputs = asking(call(H=2, Q=3, visible=torch.tensor([True, False, True])[:, None]))
    grad = grad_for(inputs)
    grad[:, :, 1] = torch.inf
    gradients = backward(attend(m, inputs).output, inputs, grad)
    return not all(bool(gradient.isfinite().all()) for gradient in gradients.values())
