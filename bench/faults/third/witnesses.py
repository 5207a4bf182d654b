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
    changed_between,
    differs,
    drawn,
    draws_broken,
    in_threads,
    in_turn,
    ints,
    judged,
    of,
    share_dropped,
)  # fmt: skip

from tfkit.plugin import LinearBias

F64, BF16 = torch.float64, torch.bfloat16
WITNESSES = Witnesses()
shows = WITNESSES.shows


# twopass

WITNESSES |= {
    "t_end_of_causal": of(lambda: call(H=2, Q=3, K=200, causal=True, offset=118)),
    "t_begin_of_window": of(lambda: call(H=2, Q=3, K=200, window=(10, None), offset=129)),
    "t_sum_not_rescaled": of(lambda: call(H=2, Q=3, K=200)),
    "t_end_of_first_row": of(lambda: call(2, 2, Q=3, K=200, causal=True, offset=ints(4, 190))),
    "t_begin_of_last_row": of(lambda: call(2, 2, Q=3, K=200, window=(20, None), offset=ints(30, 170))),
    "t_table_by_sum": lambda m: in_turn(
        m, *(call(Q=queries, K=keys, causal=True, offset=2) for queries, keys in ((4, 6), (5, 5)))
    ),
    "t_delta_by_tile": of(lambda: call(H=2, Q=3, K=200)),
    "t_slope_gradient_signed": of(lambda: call(H=2, Q=4, K=9, bias="linear", offset=2)),
    "t_query_gradient_of_last_tile": of(lambda: call(H=2, Q=3, K=200), only=("query",)),
    "t_segment_zero": of(lambda: call(H=2, Q=3, query_segments=ints(0, 0, 1)[None], key_segments=ints(0, 0, 1, 1, 1, 2)[None])),
    "t_value_gradient_unscaled": lambda m: draws_broken(m, call(H=2, Q=6, dropout=0.4)),
    "t_places_of_first_row": of(lambda: call(2, 2, Q=3, K=8, bias=("distance", 5, -2), offset=ints(0, 4))),
    "t_low_above_zero": of(lambda: call(H=2, Q=3, K=9, bias=("distance", 4, 2), offset=0)),
    "t_value_dim_of_query": of(lambda: call(H=2, Q=3, D=8, V=4)),
    "t_seen_of_last_tile": of(lambda: call(H=2, Q=3, K=200, key_visible=torch.arange(200)[None] < 60)),
}


@shows
def t_view_of_query(m):
    inputs = call(2, 4, 2, Q=4)
    query = inputs.query.transpose(1, 2).contiguous().transpose(1, 2)
    return differs(m, replace(inputs, query=query), gradients=False)


@shows
def t_output_in_storage(m):
    """Fifty tiles add the same number."""
    inputs = call(Q=2, K=6000, D=4, dtype=BF16)
    inputs = replace(inputs, query=torch.zeros_like(inputs.query), value=torch.ones_like(inputs.value))
    return differs(m, inputs, gradients=False)


@shows
def t_one_table(m):
    inputs = [call(Q=queries, K=8, D=4, causal=True, offset=3) for queries in (3, 5, 7)]
    want, wrong = [attend(m, one).output for one in inputs], []

    def work(number):
        for _ in range(300):
            try:
                wrong.append(not torch.equal(m.attend(inputs[number], OPTIONS).output, want[number]))
            except RuntimeError:
                wrong.append(True)

    in_threads(work)
    return any(wrong)


@shows
def t_coins_of_diagonal(m):
    keep = drawn(m, call(Q=144, K=240, D=4, dropout=0.4))
    return torch.equal(keep[:, :, 72:, :120], keep[:, :, :72, 120:])


@shows
def t_seed_of_process(m):
    inputs = call(H=2, Q=8, K=8, D=4, dropout=0.5)
    return torch.equal(drawn(m, inputs, 7), drawn(m, inputs, None))


@shows
def t_seed_counts_calls(m):
    inputs = call(H=2, Q=8, K=8, D=4, dropout=0.5)
    return not torch.equal(drawn(m, inputs, 7), drawn(m, inputs, 7))


@shows
def t_weights_dropped(m):
    return bool((attend(m, call(H=2, Q=8, K=8, D=4, dropout=0.5, weights=True)).weights == 0).any())


@shows
def t_lengths_alive(m):
    lengths = ints(3, 5)
    return changed_between(m, call(2, 2, Q=3, K=6, D=4, key_lengths=lengths), lambda: lengths.fill_(6))


@shows
def t_nan_to_zero(m):
    """A key that is infinite gives scores of infinity, which have no softmax."""
    inputs = call(Q=2, K=5, D=4)
    key = inputs.key.clone()
    key[:, :, 2] = torch.inf
    inputs = replace(inputs, query=torch.ones_like(inputs.query), key=key)
    return not bool(attend(m, inputs).output.isnan().all())


@shows
def t_second_silent(m):
    """Second derivatives are not declared: an error is right."""
    inputs = asking(call(Q=2, K=4, D=3, dtype=F64), ("query",))
    [first] = torch.autograd.grad((attend(m, inputs).output ** 2).sum(), inputs.query, create_graph=True)
    try:
        torch.autograd.grad((first**2).sum(), inputs.query)
    except RuntimeError:
        return False
    return True


# packed

WITNESSES |= {
    "p_memory_without_dtype": lambda m: in_turn(
        m, *(call(H=2, dtype=dtype) for dtype in (torch.float32, F64)), gradients=False
    ),
    "p_decode_bias_begin": of(lambda: call(H=2, Q=1, K=12, window=(3, None), offset=9, bias="linear"), gradients=False),
    "p_decode_end_of_first_row": of(lambda: call(2, 2, Q=1, K=9, key_lengths=ints(3, 7)), gradients=False),
    "p_decode_begin_of_furthest": of(lambda: call(2, 2, Q=1, K=9, window=(2, None), offset=ints(3, 7)), gradients=False),
    "p_coins_signed": lambda m: abs(share_dropped(m, 0.2) - 0.2) > 0.1,
    "p_length_for_causal": of(lambda: call(2, 2, Q=3, K=9, causal=True, offset=1, key_lengths=ints(8, 9))),
    "p_causal_window_right": of(lambda: call(H=2, Q=3, K=9, causal=True, window=(2, 2), offset=3)),
    "p_weights_of_unseen": of(lambda: call(2, 2, Q=3, query_lengths=ints(2, 3), weights=True)),
    "p_lse_of_unseen": of(lambda: call(2, 2, Q=3, query_lengths=ints(2, 3), lse=True), gradients=False),
    "p_bias_alone": of(lambda: call(H=2, Q=3, bias="dense"), only=("bias",)),
    "p_cap_after_bias": of(lambda: call(H=2, Q=3, softcap=2.0, bias="dense"), gradients=False),
    "p_weights_in_storage": of(lambda: call(H=2, Q=8, K=30, V=40, dtype=BF16, spread=2.0), gradients=False),
    "p_mean_for_unseen": of(lambda: call(2, 2, Q=3, query_lengths=ints(2, 3)), gradients=False),
    "p_alibi_of_past": of(lambda: call(H=2, Q=3, K=9, bias=LinearBias(torch.tensor([0.5, 0.25])), offset=2)),
}


@shows
def p_lse_in_memory(m):
    inputs = call(H=2, Q=4, K=5, D=4, lse=True)
    answer = attend(m, inputs)
    attend(m, call(H=2, Q=4, K=5, D=4, seed=5, lse=True))
    return judged(lambda: answer, m, inputs)


@shows
def p_no_draw_without_gradients(m):
    inputs = call(H=2, Q=16, K=16, D=4, dropout=0.5)
    return bool((drawn(m, inputs) > 0).all())


@shows
def p_scaled_score(m):
    def score(query, key):
        return (query @ key.mT).tanh()

    inputs = call(H=2, Q=3, scale=0.2, score=score)
    want = torch.softmax(score(inputs.query, inputs.key), -1) @ inputs.value
    return not torch.allclose(attend(m, inputs).output, want, atol=1e-4)


@shows
def p_batch_stride(m):
    """Keys of a projection, (B,K,G,D)."""
    inputs = call(2, 2, Q=3)
    return differs(m, replace(inputs, key=inputs.key.transpose(1, 2).contiguous().transpose(1, 2)), gradients=False)


@shows
def p_query_written(m):
    inputs = call(H=2, Q=4)
    before = inputs.query.clone()
    attend(m, inputs)
    return not torch.equal(inputs.query, before)
