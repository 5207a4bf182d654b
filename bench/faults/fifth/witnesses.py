"""For each fault of this set calls inside of what its kernel declares. True where a result is wrong."""

from __future__ import annotations

import os
import weakref
from dataclasses import replace

import torch
from calls import (
    Witnesses,
    asking,
    attend,
    backward,
    call,
    differs,
    drawn,
    grad_for,
    in_turn,
    ints,
    of,
    random,
)  # fmt: skip

from tfkit.plugin import DenseBias

F64, BF16 = torch.float64, torch.bfloat16

WITNESSES = Witnesses()
shows = WITNESSES.shows


# twopass

WITNESSES |= {
    "w_tall_tiles": of(lambda: call(Q=200, K=1100, D=4), gradients=False),
    "w_whole_tiles_alone": of(lambda: call(Q=72, K=120, D=4, query_lengths=ints(50)), gradients=False),
    "w_gradient_of_wide_keys": of(lambda: call(Q=3, D=320, V=16)),
    "w_tables_by_hash": lambda m: in_turn(
        m, *(call(H=2, Q=4, causal=True, offset=offset) for offset in (-1, -2)), gradients=False
    ),
}


@shows
def w_hidden_tile_ends(m):
    """The first block of keys is hidden from all of these queries."""
    visible = torch.arange(250).expand(3, -1) >= 120
    return differs(m, call(H=2, Q=3, K=250, visible=visible), gradients=False)


@shows
def w_tiles_of_eight(m):
    keep = drawn(m, call(Q=144, K=1080, D=4, dropout=0.5))
    return torch.equal(keep[:, :, :72, 960:], keep[:, :, 72:, :120])


@shows
def w_output_in_place(m):
    """A residual is added in place."""
    inputs = asking(call(H=2, Q=4))
    grad = grad_for(inputs)
    want = backward(attend(m, inputs).output + 3.0, inputs, grad)
    got = backward(attend(m, inputs).output.add_(3.0), inputs, grad)
    return not torch.allclose(got["query"], want["query"], rtol=1e-4, atol=1e-5)


@shows
def w_zero_gradient_ends(m):
    """A loss of the last token."""
    inputs = call(H=2, Q=100, K=8)
    grad = grad_for(inputs) * (torch.arange(100) == 99)[:, None]
    return differs(m, inputs, grad=grad)


@shows
def w_packed_sequences(m):
    """Two sequences laid end to end, of 30 queries and 125 keys each."""
    query, key = (torch.arange(2).repeat_interleave(length)[None] for length in (30, 125))
    return differs(m, call(H=2, Q=60, K=250, query_segments=query, key_segments=key), gradients=False)


@shows
def w_shared_lengths(m):
    """Attention of padded sequences to themselves."""
    lengths = ints(3, 5)
    return differs(m, call(2, 2, Q=5, K=5, query_lengths=lengths, key_lengths=lengths), gradients=False)


@shows
def w_sixteen_documents(m):
    """Twenty documents of two tokens."""
    segments = torch.arange(20).repeat_interleave(2)[None]
    return differs(m, call(H=2, Q=40, K=40, query_segments=segments, key_segments=segments), gradients=False)


@shows
def w_head_numbers(m):
    keep = drawn(m, call(H=65, Q=8, K=240, D=4, dropout=0.5))
    return torch.equal(keep[:, 64, :, :120], keep[:, 0, :, 120:])


@shows
def w_backward_kept(m):
    """Two rows of a Jacobian."""
    inputs = asking(call(H=2, Q=4))
    output = attend(m, inputs).output
    backward(output, inputs, grad_for(inputs, 1), retain_graph=True)
    got = backward(output, inputs, grad_for(inputs, 2))["query"]
    want = backward(attend(m, inputs).output, inputs, grad_for(inputs, 2))["query"]
    return not torch.allclose(got, want, rtol=1e-4, atol=1e-5)


@shows
def w_gradient_alive(m):
    inputs = asking(call(H=2, Q=4))
    grad = grad_for(inputs)
    alive = weakref.ref(grad)
    backward(attend(m, inputs).output, inputs, grad)
    del grad
    return alive() is not None


@shows
def w_benchmark_left(m):
    before = torch.backends.cudnn.benchmark
    torch.backends.cudnn.benchmark = False
    try:
        attend(m, call(H=2, Q=4))
        return torch.backends.cudnn.benchmark
    finally:
        torch.backends.cudnn.benchmark = before


# packed

WITNESSES |= {
    "x_decode_step_kept": lambda m: in_turn(
        m, *(call(H=2, Q=1, K=keys, causal=True, offset=keys - 1) for keys in (8, 9)), gradients=False
    ),
    "x_drafted_queries": of(lambda: call(Q=5, K=1100, D=4, causal=True, offset=1095), gradients=False),
    "x_reversed_chunks": of(lambda: call(Q=100, K=1100, D=4, causal=True, offset=1000)),
    "x_halves_of_long_rows": of(lambda: call(1, 8, 1, Q=1, K=4200, D=4, spread=60.0), gradients=False),
    "x_slices_of_heads": of(lambda: call(1, 24, 12, Q=56, K=4, D=4, V=128), gradients=False),
    "x_window_of_chunk": of(lambda: call(Q=100, K=1100, D=4, window=(40, 0), offset=900), gradients=False),
    "x_side_of_zero": lambda m: in_turn(
        m, *(call(H=2, Q=3, K=8, window=(2, right), offset=2) for right in (0, None)), gradients=False
    ),
}


@shows
def x_bias_mean(m):
    """Padding is hidden by a bias."""
    hidden = torch.tensor([0.0, 0.0, 0.0, 0.0, -1e9, -1e9])
    return differs(m, call(H=2, Q=3, bias=DenseBias(random(1, 2, 3, 6) + hidden)), gradients=False)


@shows
def x_generator_step(m):
    inputs = call(H=2, Q=8, K=8, D=4, dropout=0.5)
    first = drawn(m, inputs, 7)
    second = drawn(m, inputs, None)
    return torch.equal(second[:, 0], first[:, 1])


@shows
def x_triangle(m):
    """A chunk of a prompt after 20 keys of a cache."""
    visible = torch.ones(10, 30, dtype=torch.bool).tril(20)
    return differs(m, call(H=2, Q=10, K=30, visible=visible), gradients=False)


@shows
def x_second_derivative_of_dropout(m):
    """Of one draw, against differences of gradients."""
    inputs = asking(call(Q=3, K=5, D=3, dropout=0.4, dtype=torch.float64))
    along = random(1, 1, 3, 3).double()

    def slope(query):
        return torch.autograd.grad((attend(m, replace(inputs, query=query), 7).output ** 2).sum(), query, create_graph=True)[0]

    [second] = torch.autograd.grad((slope(inputs.query) * along).sum(), inputs.query)
    ends = [slope((inputs.query + sign * 1e-5 * along).detach().requires_grad_()).detach() for sign in (1, -1)]
    return not torch.allclose(second, (ends[0] - ends[1]) / 2e-5, rtol=1e-3, atol=1e-6)


@shows
def x_level_of_first_keys(m):
    """The key that a long row looks for comes late."""
    inputs = call(Q=1, K=65_600, D=4, V=4)
    key = inputs.key.clone()
    key[0, 0, 65_590] = 200.0 * inputs.query[0, 0, 0] / (inputs.query[0, 0, 0] ** 2).sum()
    return differs(m, replace(inputs, key=key, scale=1.0), gradients=False)


@shows
def x_visible_of_first_chunk(m):
    """All of the first 60 queries see all, later ones do not."""
    visible = torch.ones(100, 8, dtype=torch.bool)
    visible[60:, 4:] = False
    return differs(m, call(H=2, Q=100, K=8, visible=visible), gradients=False)


@shows
def x_coin_table(m):
    keep = drawn(m, call(2, 4, Q=2000, K=32, D=4, dropout=0.5)).flatten(0, 2)
    return torch.equal(keep[12_007:], keep[: len(keep) - 12_007])


@shows
def x_coins_by_strides(m):
    """Rule A7: a query as a projection leaves it, (B,Q,H,D), and a copy of it have one draw."""
    inputs = call(H=3, Q=8, K=8, D=4, dropout=0.5)
    query = torch.zeros(1, 8, 3, 4).transpose(1, 2)
    value = torch.eye(8).expand(1, 3, -1, -1)
    outputs = [attend(m, replace(inputs, query=one, value=value), 7).output for one in (query, query.contiguous())]
    return not torch.equal(*(output > 0 for output in outputs))


@shows
def x_default_dtype(m):
    """A program that makes its model in bfloat16."""
    inputs = call(H=2, Q=3, K=300, dtype=BF16, spread=2.0)
    torch.set_default_dtype(BF16)
    try:
        output = attend(m, inputs).output
    finally:
        torch.set_default_dtype(torch.float32)
    want = torch.softmax(inputs.query.double() @ inputs.key.double().mT * inputs.scale, -1) @ inputs.value.double()
    return bool(((output.double() - want).abs() > 2.0**-8 * want.abs() + 1e-4).any())


@shows
def x_weights_of_decoding(m):
    return attend(m, call(H=2, Q=1, K=600, dtype=BF16, weights=True)).weights.dtype != BF16


@shows
def x_values_limited(m):
    inputs = call(H=2, Q=4)
    return differs(m, replace(inputs, value=inputs.value * 1e6))


@shows
def x_weights_of_score(m):
    """A loss of the weights of a score function."""
    inputs = asking(call(H=2, Q=3, weights=True, score=lambda query, key: query @ key.mT))
    return not attend(m, inputs).weights.requires_grad


@shows
def x_environment(m):
    before = os.environ.pop("OMP_NUM_THREADS", None)
    try:
        attend(m, call(H=2, Q=3, score=lambda query, key: query @ key.mT))
        return "OMP_NUM_THREADS" in os.environ
    finally:
        os.environ.pop("OMP_NUM_THREADS", None)
        os.environ |= {} if before is None else {"OMP_NUM_THREADS": before}
