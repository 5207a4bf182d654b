"""For each fault of this set calls inside of what its kernel declares. True where a result is wrong."""

from __future__ import annotations

import gc
import threading
import weakref
from dataclasses import replace

import torch
from calls import (
    OPTIONS,
    Witnesses,
    asking,
    attend,
    backward,
    call,
    coins,
    differs,
    drawn,
    grad_for,
    in_turn,
    ints,
    judged,
    of,
    overwritten,
    random,
)  # fmt: skip

from tfkit.plugin import DenseBias, LinearBias, Shapes

BF16 = torch.bfloat16
WITNESSES = Witnesses()
shows = WITNESSES.shows


# twopass

WITNESSES |= {
    "u_places_without_low": lambda m: in_turn(
        m, *(call(H=2, Q=3, K=8, bias=("distance", 5, low), offset=2) for low in (-2, -4)), gradients=False
    ),
    "u_slopes_by_sum": lambda m: in_turn(
        m, *(call(H=2, Q=3, K=8, bias=LinearBias(torch.tensor(slopes)), offset=2) for slopes in ((0.5, 0.25), (0.25, 0.5))),
        gradients=False,
    ),
    "u_lengths_32_bits": of(lambda: call(2, 2, Q=3, key_lengths=ints(2**32 + 1, 4))),
    "u_wide_heads": of(lambda: call(Q=3, K=5, D=512, V=8), gradients=False),
    "u_pair_bias_shared": of(lambda: call(2, 2, Q=3, K=5, bias=DenseBias(random(2, 1, 3, 5))), gradients=False),
    "u_sixteen_tiles": of(lambda: call(Q=1200, K=8, D=4), gradients=False),
    "u_scalar_bias": of(lambda: call(Q=3, bias=DenseBias(torch.tensor(0.5)), lse=True), gradients=False),
}  # fmt: skip


@shows
def u_gradient_ring(m):
    """Gradients of four layers of one size are kept until the optimiser's step."""
    layers = [asking(call(H=2, Q=3, seed=seed)) for seed in range(4)]
    got = [backward(attend(m, one).output, one, grad_for(one))["key"] for one in layers]
    again = backward(attend(m, layers[0]).output, layers[0], grad_for(layers[0]))["key"]
    return not torch.allclose(got[0], again)


@shows
def u_plan_of_thread(m):
    """A training loop that calls the backward pass in another thread."""
    inputs, errors = asking(call(H=2, Q=3)), []
    output = attend(m, inputs).output

    def work() -> None:
        try:
            backward(output, inputs, grad_for(inputs))
        except Exception as error:
            errors.append(error)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return bool(errors)


@shows
def u_lse_ring(m):
    """Five layers of one size, then their backward passes."""
    inputs = asking(call(H=2, Q=4, K=5))
    answer = attend(m, inputs)
    for seed in range(1, 5):
        attend(m, asking(call(H=2, Q=4, K=5, seed=seed, spread=3.0)))
    return judged(lambda: answer, m, inputs)


@shows
def u_tile_byte(m):
    """The coins of keys 0 and 30720, which is in tile 256."""
    inputs = call(Q=72, K=30_840, D=4, dropout=0.5)
    value = torch.zeros(1, 1, 30_840, 4)
    value[0, 0, 0, 0] = value[0, 0, 30_720, 1] = 1.0
    inputs = replace(inputs, query=torch.zeros_like(inputs.query), value=value)
    output = attend(m, inputs, 3).output
    return torch.equal(output[..., 0] > 0, output[..., 1] > 0)


@shows
def u_bias_gradient_strided(m):
    """One bias by head, expanded over the queries."""
    values = random(1, 2, 1, 6).expand(1, 2, 4, 6)
    return differs(m, call(H=2, Q=4, bias=DenseBias(values)))


@shows
def u_collector_off(m):
    inputs = asking(call(H=2, Q=3))
    try:
        backward(attend(m, inputs).output, inputs, grad_for(inputs))
        return not gc.isenabled()
    finally:
        gc.enable()


@shows
def u_coins_of_visible_tiles(m):
    """For queries of zero and one-hot values the output O is the dropped weights, and dV = O^T dO."""
    inputs = call(Q=8, K=250, D=4, window=(40, 0), offset=200, dropout=0.5)
    inputs = replace(inputs, query=torch.zeros_like(inputs.query), value=torch.eye(250)[None, None])
    inputs, grad = asking(inputs, ("value",)), grad_for(inputs)
    output = attend(m, inputs, 7).output
    return not torch.allclose(torch.autograd.grad(output, inputs.value, grad)[0], output.detach().mT @ grad, atol=1e-4)


@shows
def u_inputs_unsaved(m):
    """An optimiser's step comes between: an error is right, as are the gradients of the numbers before."""
    inputs = asking(call(H=2, Q=3))
    grad = grad_for(inputs)
    want = backward(attend(m, inputs).output, inputs, grad)
    output = attend(m, inputs).output
    with torch.no_grad():
        inputs.key.mul_(2.0)
    try:
        got = backward(output, inputs, grad)
    except RuntimeError:
        return False
    return not torch.allclose(got["query"], want["query"], rtol=1e-4, atol=1e-5)


@shows
def u_mask_alive(m):
    inputs = call(H=2, Q=3, visible=coins(2, 3, 6))
    alive = weakref.ref(inputs.mask.visible)
    attend(m, inputs)
    del inputs
    gc.collect()
    return alive() is not None


# packed

WITNESSES |= {
    "v_high_by_first_side": lambda m: in_turn(
        m, *(call(H=2, Q=3, K=12, window=(2, right), offset=3) for right in (4, 1)), gradients=False
    ),
    "v_lengths_by_ends": lambda m: in_turn(
        m, *(call(2, 2, Q=3, K=8, key_lengths=ints(*lengths)) for lengths in ((3, 6), (6, 3))), gradients=False
    ),
    "v_places_16_bits": of(lambda: call(Q=1, K=33_000, D=4, window=(5, 0), offset=32_900), gradients=False),
    "v_right_32_bits": of(lambda: call(H=2, Q=3, K=12, window=(3, 2**32), offset=3)),
    "v_bias_of_head_and_key": of(lambda: call(1, 4, 2, Q=3, K=5, bias=DenseBias(random(4, 1, 5))), gradients=False),
}


@shows
def v_output_ring(m):
    """A search keeps the outputs of its steps."""
    return overwritten(m, *(call(H=2, Q=1, K=5, seed=seed) for seed in range(20)))


@shows
def v_key_by_address(m):
    """A cache that another library fills: torch does not see that it writes."""
    cache = random(1, 2, 5, 8).to(BF16).view(torch.int16).numpy()
    inputs = call(H=2, Q=1, K=5, dtype=BF16)
    attend(m, replace(inputs, key=torch.from_numpy(cache).view(BF16)))
    cache[:] = cache[:, ::-1].copy()
    return differs(m, replace(inputs, key=torch.from_numpy(cache).view(BF16)), gradients=False)


@shows
def v_leaves_alone(m):
    """The tensors of a model are results of its layers."""
    weight = torch.ones(8, requires_grad=True)
    inputs = call(H=2, Q=3)
    try:
        return not attend(m, replace(inputs, query=inputs.query * weight)).output.requires_grad
    except RuntimeError:
        return True


@shows
def v_powers_of_two(m):
    """A query of padding: each of its keys has the least float32 as bias, as some models hide keys."""
    inputs = call(H=2, Q=3, bias=DenseBias(torch.full((1, 1, 3, 6), torch.finfo(torch.float32).min)))
    return bool(attend(m, inputs).output.isnan().any())


@shows
def v_prepared_bias_kept(m):
    """Two layers with tables of their own share a prepared mask."""
    layers = [call(H=2, Q=3, causal=True, offset=2, bias="dense", seed=seed) for seed in (0, 1)]
    shapes = Shapes(1, 2, 3, 6, torch.float32, torch.device("cpu"))
    prepared = m.prepare(layers[0].mask, None, shapes, OPTIONS)
    attend(m, replace(layers[0], prepared=prepared))
    return judged(lambda: attend(m, replace(layers[1], prepared=prepared)), m, layers[1])


@shows
def v_precision_after_error(m):
    def score(query, key):
        raise ValueError

    before = torch.get_float32_matmul_precision()
    torch.set_float32_matmul_precision("high")
    try:
        attend(m, call(Q=3, score=score))
    except ValueError:
        return torch.get_float32_matmul_precision() != "high"
    finally:
        torch.set_float32_matmul_precision(before)


@shows
def v_weights_ring(m):
    """The weights of all layers are drawn as a picture."""
    kept = [attend(m, call(H=2, Q=3, K=5, weights=True, seed=seed)).weights for seed in range(4)]
    return not torch.allclose(kept[0], attend(m, call(H=2, Q=3, K=5, weights=True)).weights)


@shows
def v_keep_floor(m):
    inputs = call(8, 8, Q=64, K=40, D=4, dropout=0.9995)
    inputs = replace(inputs, query=torch.zeros_like(inputs.query), value=torch.ones_like(inputs.value))
    output = attend(m, inputs, 3).output
    return 40 * float(output[output > 0].min()) < 1500


@shows
def v_no_dropout_beside_score(m):
    def score(query, key):
        return (query @ key.mT).tanh()

    inputs = call(H=2, Q=8, K=30, dropout=0.5, score=score)
    return bool((drawn(m, replace(inputs, scale=1.0)) > 0).all())


@shows
def v_one_tensor(m):
    """Attention of a sequence to itself, without projections."""
    inputs = call(H=2, Q=6, K=6)
    inputs = replace(inputs, query=inputs.key, value=inputs.key)
    return differs(m, inputs, gradients=False)


@shows
def v_weights_detached(m):
    """A loss of the weights, of a call with dropout."""
    return not attend(m, asking(call(H=2, Q=3, weights=True, dropout=0.5))).weights.requires_grad
