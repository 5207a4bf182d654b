"""For each fault of this set calls inside of what its kernel declares. True where a result is wrong."""

from __future__ import annotations

import gc
import weakref
from dataclasses import replace

import torch
from calls import (
    ALL,
    OPTIONS,
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
    in_threads,
    in_turn,
    judged,
    of,
    random,
    share_dropped,
    value_gradient_of_threads,
)  # fmt: skip

from tfkit.plugin import AttentionInputs, DenseBias, LinearBias, Mask

F64, BF16, F16 = torch.float64, torch.bfloat16, torch.float16
WITNESSES = Witnesses()
shows = WITNESSES.shows


def seen_by(size: tuple[int, ...], *hidden) -> torch.Tensor:
    """A mask in which all but one part is visible."""
    seen = torch.ones(size, dtype=torch.bool)
    seen[hidden] = False
    return seen


def linear(*slopes: float) -> LinearBias:
    return LinearBias(torch.tensor(slopes))


def level(number: float, dtype: torch.dtype = torch.float32) -> DenseBias:
    """A bias that moves every score."""
    return DenseBias(torch.full((1, 1, 1, 1), number, dtype=dtype))


# chunks

WITNESSES |= {
    "distance_of_16_bits": of(lambda: call(Q=1, K=40, D=4, causal=True, offset=40000, lse=True)),
    "segments_of_32_bits": of(
        lambda: call(H=2, Q=3, K=6, D=4, query_segments=torch.ones(1, 3, dtype=torch.int64),
                     key_segments=torch.tensor([[1, 1 + 2**32, 1, 1 + 2**33, 2, 1]]))
    ),
    "bias_gradient_capped": of(lambda: call(2, 2, Q=4, K=5, softcap=1.5, spread=3.0, bias="dense")),
    "backward_in_float32": of(lambda: call(2, 2, Q=4, K=5, dtype=F64)),
    "last_query_without_gradient": of(lambda: call(H=2, Q=81, K=5)),
    "value_features_in_blocks": of(lambda: call(H=2, Q=4, K=5, V=200), gradients=False),
    "visibility_of_first_row": of(lambda: call(3, 2, Q=4, K=6, key_visible=seen_by((3, 6), 1, slice(3, None)))),
    "level_limited": of(lambda: call(H=2, Q=3, K=5, dtype=F64, bias=level(-20000.0), lse=True)),
    "alibi_distance_of_half": of(lambda: call(H=2, Q=2, K=40, dtype=F64, bias=linear(0.5, 0.25), offset=5001)),
    "far_distances_end_at_128": of(lambda: call(H=2, Q=3, K=200, bias=("distance", 300, -100), offset=0)),
    "alibi_of_first_row": of(
        lambda: call(2, 2, Q=2, K=8, D=4, bias=linear(0.5, 0.25), causal=True, offset=torch.tensor([3, 6]), lse=True)
    ),
    "gradient_of_a_sum": of(lambda: call(2, 2, Q=4, K=5), grad=random(2, 2, 4, 1).expand(2, 2, 4, 8)),
    "share_of_dropout_limited": lambda m: share_kept(m, 0.98) < 40,
    "generator_of_all_threads": lambda m: value_gradient_of_threads(m, 400, 64, 60),
}  # fmt: skip


def share_kept(module, p: float) -> float:
    """The factor of a weight that stays."""
    inputs = call(Q=50, K=40, D=4, V=1, dropout=p)
    inputs = replace(inputs, query=torch.zeros_like(inputs.query), value=torch.ones_like(inputs.value))
    output = attend(module, inputs, 3).output
    return 40 * float(output[output > 0].min())


@shows
def draw_repeats_by_chunk(m):
    keep = drawn(m, call(H=2, Q=120, K=30, D=4, dropout=0.4))
    return torch.equal(keep[:, :, :40], keep[:, :, 40:80])


@shows
def draw_tiled_over_keys(m):
    keep = drawn(m, call(H=2, Q=6, K=700, D=4, dropout=0.4))
    return torch.equal(keep[..., :188], keep[..., 512:])


@shows
def seed_of_ten_bits(m):
    inputs = call(Q=8, K=8, D=4, dropout=0.5)
    return len({drawn(m, inputs, seed).numpy().tobytes() for seed in range(400)}) < 400


@shows
def offset_not_copied(m):
    """A decoding loop moves its offset on."""
    offset = torch.tensor([1, 3])
    return changed_between(m, call(2, 2, Q=3, K=6, D=4, causal=True, offset=offset), lambda: offset.add_(1))


@shows
def gradient_written(m):
    inputs = asking(call(2, 2, Q=4, K=5, query_lengths=torch.tensor([2, 4])))
    grad = grad_for(inputs)
    before = grad.clone()
    backward(attend(m, inputs).output, inputs, grad)
    return not torch.equal(grad, before)


@shows
def levels_by_shape(m):
    inputs = asking(call(H=2, Q=4, K=5, seed=1))
    answer = attend(m, inputs)
    attend(m, call(H=2, Q=4, K=5, seed=2, spread=3.0))
    return judged(lambda: answer, m, inputs)


@shows
def seed_without_gradients(m):
    inputs = call(H=2, Q=20, K=20, dropout=0.5)
    return torch.equal(drawn(m, inputs, 1), drawn(m, inputs, 2))


@shows
def bias_gradient_in_storage(m):
    inputs = call(Q=24000, K=2, D=1, dtype=BF16, bias=DenseBias(torch.zeros(1, 1, 1, 2, dtype=BF16)))
    inputs = replace(inputs, query=torch.zeros_like(inputs.query), value=torch.tensor([1.0, -1.0]).bfloat16().view(1, 1, 2, 1))
    return differs(m, inputs, grad=torch.ones(1, 1, 24000, 1, dtype=BF16), only=("bias",))


@shows
def key_gradient_in_storage(m):
    inputs = call(Q=24000, K=2, D=1, dtype=BF16)
    inputs = replace(inputs, query=torch.zeros_like(inputs.query))
    return differs(m, inputs, grad=torch.ones(1, 1, 24000, 1, dtype=BF16), only=("value",))


# splits

WITNESSES |= {
    "last_key_at_a_split": of(lambda: call(H=2, Q=3, K=200, causal=True, offset=94)),
    "backward_splits_of_row_0": of(lambda: call(2, 2, Q=3, K=200, key_lengths=torch.tensor([50, 200]))),
    "thirty_two_splits": of(lambda: call(Q=2, K=3300, D=4), gradients=False),
    "level_of_zero": of(lambda: call(H=2, Q=3, K=5, bias=level(-200.0), lse=True)),
    "segments_as_floats": of(
        lambda: call(H=2, Q=3, K=6, D=4, query_segments=torch.full((1, 3), 2**24),
                     key_segments=torch.tensor([[2**24, 2**24 + 1, 2**24, 2**24 + 1, 2**24, 7]]))
    ),
    "positions_as_floats": of(lambda: call(H=2, Q=4, K=8, D=4, offset=2**24 + 1, bias=("distance", 16, -(2**24) - 6))),
    "window_of_first_split": of(lambda: call(Q=230, K=230, D=4, window=(5, 5), offset=0)),
    "rows_of_first_head": of(lambda: call(H=2, Q=3, K=6, visible=seen_by((1, 2, 3, 6), 0, 0, 1))),
    "head_dim_in_blocks": of(lambda: call(H=2, Q=3, K=5, D=300, V=8), gradients=False),
    "bias_in_storage": of(lambda: call(H=2, Q=2, K=40, dtype=BF16, bias=linear(0.51, 0.27), offset=600), gradients=False),
    "scale_of_zero": of(lambda: call(H=2, Q=3, K=5, scale=0.0)),
    "large_caps_left_out": of(lambda: call(H=2, Q=3, K=5, softcap=70.0, spread=20.0, lse=True)),
    "key_gradient_with_query": of(lambda: call(H=2, Q=3, K=5), only=("key", "value")),
    "dense_bias_of_first_row": of(lambda: call(5, 2, Q=3, K=4, bias="dense")),
    "logarithm_with_epsilon": of(
        lambda: call(Q=3, K=150, D=4, dtype=F64, key_visible=seen_by((1, 150), 0, slice(96)), bias=level(-100.0, F64), lse=True)
    ),
    "hidden_scores_of_minus_10000": of(
        lambda: call(Q=3, D=4, dtype=F64, key_visible=seen_by((1, 6), 0, slice(2, 4)), bias=level(-12000.0, F64), lse=True)
    ),
}  # fmt: skip


@shows
def splits_by_batch(m):
    inputs = call(9, 2, 1, 4, 250, 16)
    alone = replace(inputs, query=inputs.query[2:3], key=inputs.key[2:3], value=inputs.value[2:3])
    return not torch.equal(attend(m, inputs).output[2], attend(m, alone).output[0])


@shows
def visibility_not_copied(m):
    seen = torch.arange(6)[None] < 2
    return changed_between(m, call(H=2, Q=3, D=4, key_visible=seen), lambda: seen.fill_(True))


@shows
def product_in_half(m):
    inputs = call(Q=2, K=96, dtype=F16)
    return differs(m, replace(inputs, query=inputs.query * 0.01, value=inputs.value * 10 + 900.0), gradients=False)


# folded

WITNESSES |= {
    "one_query_groups_crossed": of(lambda: call(2, 6, 2, 1, 5)),
    "last_piece_of_one": of(lambda: call(Q=3, K=961)),
    "one_query_sees_the_cache": of(lambda: call(3, 2, Q=1, K=9, causal=True, offset=torch.tensor([2, 5, 0]))),
    "far_distances_limited": of(lambda: call(H=2, Q=3, K=10, offset=200, bias=("distance", 12, -201))),
    "visible_of_three_axes": of(lambda: call(2, 2, K=6, visible=coins(2, 4, 6))),
    "many_heads_per_group": of(lambda: call(1, 18, 2, 3, 5)),
    "scale_below_zero": of(lambda: call(H=2, Q=3, K=5, scale=-0.7)),
    "offset_below_zero": of(lambda: call(H=2, Q=6, causal=True, offset=-2)),
    "factors_in_float32": lambda m: draws_broken(m, call(H=2, Q=6, dtype=F64, dropout=0.3)),
    "bands_share_a_bias": of(lambda: call(Q=1200, K=512, D=4, bias=DenseBias(random(1, 1, 1200, 512))), gradients=False),
    "draw_in_storage": lambda m: abs(share_dropped(m, 0.001, BF16) - 0.001) > 0.0005,
}


@shows
def bands_share_a_draw(m):
    keep = drawn(m, call(Q=1200, K=512, D=4, dropout=0.4))
    return torch.equal(keep[:, :, :100], keep[:, :, 1024:1124])


@shows
def groups_share_a_draw(m):
    keep = drawn(m, call(1, 4, 2, 10, 10, 4, dropout=0.4))
    return torch.equal(keep[:, 0], keep[:, 1])


@shows
def export_groups_crossed(m):
    class Module(torch.nn.Module):
        def forward(self, query, key, value):
            return m.attend(AttentionInputs(query, key, value, Mask(), 0.5), OPTIONS).output

    inputs = call(1, 4, 2, 3, 5, 4, scale=0.5)
    tensors = (inputs.query, inputs.key, inputs.value)
    got = torch.export.export(Module(), tensors).module()(*tensors)
    return judged(lambda: replace(attend(m, inputs), output=got), m, inputs)


@shows
def compiled_without_dropout(m):
    inputs = call(H=2, Q=30, K=30, D=4, dropout=0.5)
    compiled = torch.compile(lambda call: m.attend(call, OPTIONS).output, backend="eager", fullgraph=True)
    return float(compiled(replace(inputs, value=torch.ones_like(inputs.value))).std()) < 0.1


@shows
def one_key_is_never_dropped(m):
    return not bool((attend(m, call(4, 4, Q=16, K=1, D=4, dropout=0.5), 2).output[..., 0] == 0).any())


@shows
def values_without_gaps(m):
    """The first five places of a cache."""
    cache = random(2, 2, 12, 8)
    return differs(m, replace(call(2, 2, Q=3, K=5), value=cache[:, :, :5]), gradients=False)


@shows
def threads_left_at_one(m):
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        attend(m, call(H=2, Q=1, K=5, D=4))
        return torch.get_num_threads() != 2
    finally:
        torch.set_num_threads(before)


@shows
def subnormals_flushed(m):
    torch.set_flush_denormal(False)
    try:
        attend(m, call(H=2, Q=3, K=5, D=4, softcap=2.0))
        return not bool(torch.tensor([1e-38]) * torch.tensor([0.01]) > 0)
    finally:
        torch.set_flush_denormal(False)


@shows
def one_level_per_head(m):
    inputs = call(Q=3, D=4, scale=1.0)
    inputs.query[0, 0, 0] = 200.0
    inputs.query[0, 0, 1] = 0.0
    return differs(m, inputs, gradients=False)


@shows
def distances_by_identity(m):
    offset = torch.tensor([0, 1])
    inputs = call(2, 2, Q=1, K=9, causal=True, offset=offset)
    attend(m, inputs)
    offset.add_(1)
    return differs(m, inputs, gradients=False)


@shows
def second_derivative_of_cap(m):
    inputs = call(Q=2, K=4, D=3, dtype=F64, softcap=1.0, spread=2.0)

    def eager(inputs):
        scores = inputs.softcap * torch.tanh(inputs.scale * (inputs.query @ inputs.key.mT) / inputs.softcap)
        return torch.softmax(scores, -1) @ inputs.value

    def second(attend):
        mine = asking(inputs)
        [first] = torch.autograd.grad((attend(mine) ** 2).sum(), mine.query, create_graph=True)
        return torch.autograd.grad((first**2).sum(), mine.query)[0]

    return not torch.allclose(second(lambda mine: attend(m, mine).output), second(eager))


@shows
def default_dtype_left(m):
    try:
        attend(m, call(H=2, Q=3, K=5, D=4, dtype=F64))
        return torch.get_default_dtype() != torch.float32
    finally:
        torch.set_default_dtype(torch.float32)


@shows
def draw_of_eight_rows(m):
    keep = drawn(m, call(10, 2, Q=10, K=10, D=4, dropout=0.4))
    return torch.equal(keep[0], keep[8])


# workspace

WITNESSES |= {
    "near_without_left": lambda m: in_turn(m, *(call(H=2, Q=8, K=8, D=4, window=(left, 1), offset=0) for left in (5, 1))),
    "alibi_by_three_digits": lambda m: in_turn(
        m, *(call(H=2, Q=2, K=400, D=4, bias=linear(0.5, slope), offset=398) for slope in (0.0104, 0.0096)), gradients=False
    ),
    "tables_written": lambda m: in_turn(
        m, call(H=2, Q=6, D=4, causal=True, offset=0, key_visible=torch.arange(6)[None] % 2 == 0),
        call(H=2, Q=6, D=4, causal=True, offset=0),
    ),
    "index_without_its_end": lambda m: in_turn(
        m, *(call(H=2, Q=3, K=12, D=4, bias=("distance", values, -2), offset=0) for values in (4, 9)), gradients=False
    ),
    "distance_of_32_bits": of(lambda: call(H=2, Q=2, K=5, D=4, causal=True, offset=2**31 + 10, lse=True)),
    "odd_batch_in_pairs": lambda m: in_turn(m, *(call(5, 4, 2, 48, 48, seed=seed) for seed in (3, 4))),
    "offset_by_its_ends": of(lambda: call(3, 2, Q=2, K=8, D=4, causal=True, offset=torch.tensor([2, 5, 2]))),
    "alibi_without_dtype": lambda m: in_turn(
        m, *(call(H=2, Q=2, K=30, D=4, dtype=dtype, bias=linear(0.3, 0.7), offset=28) for dtype in (torch.float32, F64)),
        gradients=False,
    ),
    "probability_of_eight_bits": lambda m: abs(share_dropped(m, 0.0075) - 0.0075) > 0.001,
}  # fmt: skip


@shows
def alibi_by_address(m):
    slopes = torch.tensor([0.5, 0.25])
    inputs = call(H=2, Q=6, D=4, bias=LinearBias(slopes), offset=0)
    attend(m, inputs)
    slopes.mul_(3.0)
    return differs(m, inputs, gradients=False)


@shows
def workspace_of_all_threads(m):
    inputs = [call(H=4, Q=96, K=96, D=32, seed=seed) for seed in range(3)]
    want, wrong = [attend(m, one).output for one in inputs], []

    def work(number):
        for _ in range(100):
            wrong.append(not torch.allclose(m.attend(inputs[number], OPTIONS).output, want[number], atol=1e-4))

    in_threads(work)
    return any(wrong)


@shows
def tables_of_inference(m):
    inputs = call(H=2, Q=6, D=4, bias="linear", offset=0)
    with torch.inference_mode():
        attend(m, inputs)
    return differs(m, inputs, only=ALL[:3])


@shows
def draw_in_workspace(m):
    inputs = call(H=2, Q=8, K=8, D=4, dropout=0.5)
    return draws_broken(m, inputs, lambda: attend(m, inputs))


@shows
def weights_in_workspace(m):
    inputs = call(H=2, Q=4, K=5, D=4, weights=True)
    answer = attend(m, inputs)
    attend(m, call(H=2, Q=4, K=5, D=4, seed=5))
    return judged(lambda: answer, m, inputs)


@shows
def bias_gradient_in_workspace(m):
    one, other = (asking(call(H=2, Q=4, K=5, D=4, bias="dense", seed=seed)) for seed in (0, 5))
    got = backward(attend(m, one).output, one, grad_for(one))["bias"]
    before = got.clone()
    backward(attend(m, other).output, other, grad_for(other))
    return not torch.equal(got, before)


@shows
def query_scaled_in_storage(m):
    inputs = call(Q=3, K=5, dtype=F16, scale=256.0)
    return differs(m, replace(inputs, query=inputs.query * 300, key=inputs.key * 1e-5), gradients=False)


@shows
def segments_by_identity(m):
    query, key = torch.tensor([[0, 0, 1]]), torch.tensor([[0, 0, 1, 1, 1]])
    inputs = call(H=2, Q=3, K=5, D=4, query_segments=query, key_segments=key)
    attend(m, inputs)
    key.copy_(torch.tensor([[0, 1, 1, 0, 0]]))
    return differs(m, inputs)


@shows
def values_from_the_beginning(m):
    inputs = call(H=2, Q=3, K=5, D=4)
    both = torch.stack([inputs.key, inputs.value])
    return differs(m, replace(inputs, key=both[0], value=both[1]), gradients=False)


@shows
def gradient_times_zero(m):
    """The gradient of a query that sees no key is infinite."""
    inputs = asking(call(2, 2, Q=3, K=5, D=4, query_lengths=torch.tensor([2, 3])))
    grad = grad_for(inputs)
    grad[0, :, 2] = torch.inf
    return any(bool(tensor.isnan().any()) for tensor in backward(attend(m, inputs).output, inputs, grad).values())


@shows
def zeros_for_no_softmax(m):
    """Scores of -inf alone, all visible, have no softmax."""
    inputs = call(Q=2, K=5, D=4)
    inputs = replace(inputs, query=torch.ones_like(inputs.query), key=torch.full_like(inputs.key, -torch.inf))
    return not bool(attend(m, inputs).output.isnan().all())


@shows
def last_call_kept(m):
    inputs = call(H=2, Q=3, K=5, D=4)
    alive = weakref.ref(inputs.query)
    attend(m, inputs)
    del inputs
    gc.collect()
    return alive() is not None


@shows
def draw_of_one_backward(m):
    inputs = call(H=2, Q=8, K=8, D=4, dropout=0.5)
    factors, inputs = drawn(m, inputs), asking(inputs)
    answer = attend(m, inputs, 7)
    backward(answer.output, inputs, grad_for(inputs), retain_graph=True)
    return judged(lambda: answer, m, inputs, drawn=factors)


@shows
def query_gradient_in_storage(m):
    inputs = call(Q=3, K=5, dtype=F16, scale=1e-4)
    inputs = replace(inputs, key=inputs.key * 500, value=inputs.value * 30)
    return differs(m, inputs, grad=grad_for(inputs) * 30)


@shows
def lse_in_storage(m):
    inputs = call(Q=3, K=50, dtype=BF16, lse=True)
    return differs(m, inputs, gradients=False)


@shows
def weights_change_the_output(m):
    inputs = call(H=2, Q=6, K=50, D=16, dtype=BF16)
    return not torch.equal(attend(m, inputs).output, attend(m, replace(inputs, return_weights=True)).output)
