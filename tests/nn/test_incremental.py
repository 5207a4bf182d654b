"""Decoding step by step gives what one pass over the whole target gives, for every position scheme there is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor

import tfkit
from tfkit import Model
from tfkit.nn.runtime.decoding_state import KeyValueCache

SCHEMES = {
    "none": ["none"],
    "sinusoidal": ["sinusoidal", "{kind: sinusoidal, combine: concat}", "{kind: sinusoidal, count: visible}"],
    "sinusoidal_halves": ["sinusoidal_halves"],
    "learned": ["{kind: learned, max_len: 16}", "{kind: learned, max_len: 16, offset: 2, count: visible}"],
    "rotary_half": ["rotary_half", "{kind: rotary_half, dims: 2}"],
    "rotary_interleaved": ["{kind: rotary_interleaved, scaling: {kind: yarn, factor: 4.0, trained_len: 8}}"],
    "alibi": ["alibi"],
    "relative_t5": ["{kind: relative_t5, buckets: 6, max_distance: 7}", "{kind: relative_t5, buckets: 6, tables: layer}"],
    "relative_shaw": ["{kind: relative_shaw, max_distance: 3}", "{kind: relative_shaw, max_distance: 3, tables: stack}"],
}
WRITTEN = [text for texts in SCHEMES.values() for text in texts]
B, S, T = 3, 7, 11
VISIBLE = torch.ones(B, T, dtype=torch.bool)
RIGHT, LEFT = VISIBLE.clone(), VISIBLE.clone()
RIGHT[1, 6:], RIGHT[2, 9:] = False, False
LEFT[0, :4], LEFT[2, :1] = False, False
CHUNKS = {"one by one": [1] * T, "growing": [1, 2, 3, 5], "prompt": [8, 1, 1, 1]}


def steps(model: Model, state: tfkit.DecodingState, ids: Tensor, chunks: list[int], visible: Tensor | None = None) -> Tensor:
    pieces, start = [], 0
    for length in chunks:
        now = slice(start, start + length)
        pieces.append(model.step(state, ids[:, now], True if visible is None else visible[:, now])["logits"])
        start += length
    return torch.cat(pieces, 1)


def close(got: Tensor, want: Tensor, bound: float, visible: Tensor = VISIBLE) -> None:
    assert got.shape == want.shape
    assert float((got - want)[visible].abs().max()) <= bound
    assert not got.isnan().any()


def test_every_scheme_of_the_catalogue_is_here(catalogue: tfkit.Catalogue) -> None:
    builtin = {name for name, offer in catalogue.registered["position"].items() if offer.plugin == "builtin"}
    assert builtin == {*SCHEMES, "sinusoidal_2d"}  # which is for images, and these are not decoded


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32], ids=["float64", "float32"])
@pytest.mark.parametrize("position", WRITTEN)
def test_steps_equal_the_full_forward(
    position: str,
    dtype: torch.dtype,
    model_of: Callable[..., Model],
    ids_of: Callable[..., Tensor],
    rounding: Callable[..., float],
) -> None:
    model = model_of(position=position, dtype=dtype)
    source, target = ids_of(B, S, 1), ids_of(B, T, 2)
    source[1, 4:] = 0
    for padded in (VISIBLE, RIGHT, LEFT):
        with torch.no_grad():
            want = model(source=source, target=target, masks={"target": padded})["logits"]
        bound = rounding(model, want, T)
        for chunks in CHUNKS.values():
            state = model.start(source=source, capacity=4)
            close(steps(model, state, target, chunks, padded), want, bound, padded)
        assert bound < 0.02 * float(want.std())


@pytest.mark.slow
@pytest.mark.parametrize("position", WRITTEN)
def test_decoder_only_with_groups_windows_and_several_backends(
    position: str, model_of: Callable[..., Model], ids_of: Callable[..., Tensor], rounding: Callable[..., float]
) -> None:
    overrides = ("defaults.attention.num_kv_heads=2", "body.attention.window=4", "body.layers=[{repeat: 2, shared: true}, {}]")
    model = model_of("decoder", *overrides, position=position, dtype=torch.float64)
    tokens = ids_of(B, T)
    for padded in (VISIBLE, LEFT):
        with torch.no_grad():
            want = model(tokens=tokens, masks={"tokens": padded})["logits"]
        for backend in ("eager", "sdpa"):
            model.set_backend(backend)
            state = model.start(batch=B, capacity=T)
            close(steps(model, state, tokens, [2, 1, 1, 4, 3], padded), want, rounding(model, want, T), padded)


def test_pad_id_marks_padding_while_decoding(
    model_of: Callable[..., Model], ids_of: Callable[..., Tensor], rounding: Callable[..., float]
) -> None:
    model = model_of("decoder", position="{kind: learned, max_len: 16, count: visible}", dtype=torch.float64)
    tokens = ids_of(B, T).where(LEFT, 0)
    with torch.no_grad():
        want = model(tokens=tokens)["logits"]
    state = model.start(batch=B)
    got = torch.cat([model.step(state, tokens[:, at : at + 1])["logits"] for at in range(T)], 1)
    close(got, want, rounding(model, want, T), LEFT)
    assert state.visible is not None
    assert torch.equal(state.visible, LEFT)


@pytest.mark.parametrize("shared", [False, True])
def test_the_caches_of_a_decoder_grow_and_what_is_of_the_memory_is_made_once(
    shared: bool, model_of: Callable[..., Model], ids_of: Callable[..., Tensor]
) -> None:
    model = model_of("encoder-decoder", f"decoder.layers=[{{repeat: 2, shared: {str(shared).lower()}}}]")
    projected: list[tuple[int, ...]] = []
    for layer in model.nodes["decoder"].layers:
        layer.branches["cross_attention"].key.register_forward_hook(lambda m, i, o: projected.append(tuple(i[0].shape)))
    state = model.start(source=ids_of(B, S), capacity=2)
    steps(model, state, ids_of(B, T), [1] * T)
    assert projected == [(B, S, 24)] * 2
    assert {site: cache.length for site, cache in state.caches.items()} == {f"decoder.{n}.self_attention": T for n in (0, 1)}
    assert set(state.crossed) == {f"decoder.{n}.cross_attention" for n in (0, 1)}
    assert len(state.prepared) == 1  # the mask of the memory, for both layers and all steps


@pytest.mark.parametrize("rows", [[2, 0], [1, 1, 0, 2, 1], [0], [2, 1, 0]])
def test_reorder_keeps_repeats_and_drops_hypotheses(
    rows: list[int], model_of: Callable[..., Model], ids_of: Callable[..., Tensor], rounding: Callable[..., float]
) -> None:
    model = model_of(position="{kind: learned, max_len: 16, count: visible}", dtype=torch.float64)
    source, target = ids_of(B, S, 1), ids_of(B, T, 2)
    source[2, 3:] = 0
    index = torch.tensor(rows)
    state = model.start(source=source)
    steps(model, state, target[:, :5], [2, 3], LEFT[:, :5])
    state.reorder(index)
    later = ids_of(len(rows), 4, 3)
    got = steps(model, state, later, [1, 3])
    whole, visible = torch.cat([target[index, :5], later], 1), torch.cat([LEFT[index, :5], VISIBLE[index, :4]], 1)
    with torch.no_grad():
        want = model(source=source[index], target=whole, masks={"target": visible})["logits"]
    close(got, want[:, 5:], rounding(model, want, T), VISIBLE[index, :4])


@pytest.mark.slow
@pytest.mark.parametrize("position", WRITTEN)
def test_a_state_that_was_cut_back_goes_on_as_if_the_later_tokens_had_not_been(
    position: str, model_of: Callable[..., Model], ids_of: Callable[..., Tensor], rounding: Callable[..., float]
) -> None:
    model = model_of(position=position, dtype=torch.float64)
    source, target, wrong = ids_of(B, S, 1), ids_of(B, T, 2), ids_of(B, 6, 3)
    with torch.no_grad():
        want = model(source=source, target=target, masks={"target": LEFT})["logits"]
    for stay in (0, 1, 4, 5):
        state = model.start(source=source)
        steps(model, state, torch.cat([target[:, :stay], wrong], 1), [stay, 1, 5] if stay else [1, 5])
        state.truncate(stay)
        assert (state.length, state.length if state.ids is None else state.ids.shape[1]) == (stay, stay)
        state.truncate(0)
        first = steps(model, state, target[:, :5], [2, 3], LEFT[:, :5])
        model.step(state, wrong)
        state.truncate(5)
        state.reorder(torch.arange(B))
        got = torch.cat([first, steps(model, state, target[:, 5:], [1, T - 6], LEFT[:, 5:])], 1)
        close(got, want, rounding(model, want, T), LEFT)


def test_a_state_that_cannot_be_cut_back_says_why_and_is_unchanged(
    model_of: Callable[..., Model], ids_of: Callable[..., Tensor]
) -> None:
    model, source = model_of(), ids_of(B, S, 1)
    state = model.start(source=source)
    model.step(state, ids_of(B, 3, 2))
    wrong: tuple[Any, ...] = (-1, 4, 1.0, True, None)
    for length in wrong:
        with pytest.raises(tfkit.InputError, match=r"TFK072.*of 3 positions.*from 0 to 3"):
            state.truncate(length)
    model.branch(state, torch.arange(B).repeat_interleave(2), 2)
    with pytest.raises(tfkit.InputError, match=r"TFK073.*search"):
        state.truncate(2)
    recurrent = tfkit.build("specs/rnn-encoder-decoder-small.yaml").eval()
    state = recurrent.start(source=source)
    recurrent.step(state, ids_of(B, 3, 2))
    state.truncate(3)
    with pytest.raises(tfkit.InputError, match=r"TFK073.*`decoder` has only the state after position 3"):
        state.truncate(2)
    assert state.length == 3


def test_a_mix_of_encoder_layers_and_a_second_memory_are_reordered_too(
    model_of: Callable[..., Model], ids_of: Callable[..., Tensor], rounding: Callable[..., float]
) -> None:
    nodes = """
nodes:
  source:  {kind: tokens}
  second:  {kind: tokens, share: source}
  target:  {kind: tokens, share: source, start_id: 1}
  encoder: {kind: stack, input: source, num_layers: 2}
  other:   {kind: stack, input: second, num_layers: 1}
  mixed:   {kind: layer_mix, input: encoder.layers}
  decoder:
    kind: stack
    input: target
    memory: mixed
    num_layers: 2
    causal: true
    cross_attention: {position: rotary_half}
    sublayers: [self_attention, cross_attention, {kind: cross_attention, name: to_second, memory: other}, ffn]
  logits:  {kind: token_logits, input: decoder, share: source}
outputs: [logits]
"""
    model = model_of(nodes, position="rotary_half", dtype=torch.float64)
    source, second, target = ids_of(B, S, 1), ids_of(B, 5, 4), ids_of(B, T, 2)
    second[0, 2:] = 0
    with torch.no_grad():
        want = model(source=source, second=second, target=target)["logits"]
    state = model.start(source=source, second=second)
    first = steps(model, state, target[:, :4], [4])
    index = torch.tensor([2, 2, 0])
    state.reorder(index)
    got = torch.cat([first[index], steps(model, state, target[index, 4:], [1] * (T - 4))], 1)
    close(got, want[index], rounding(model, want, T))


def test_a_memory_of_segments_can_be_decoded_from(
    model_of: Callable[..., Model], ids_of: Callable[..., Tensor], rounding: Callable[..., float]
) -> None:
    model = model_of("encoder-decoder", "source.segments=2", dtype=torch.float64)
    source, target = ids_of(B, S, 1), ids_of(B, T, 2)
    segments = {"source": (torch.arange(S) > 3).long().expand(B, S)}
    with torch.no_grad():
        want = model(source=source, target=target, segments=segments)["logits"]
    state = model.start(source=source, segments=segments)
    close(steps(model, state, target, [T]), want, rounding(model, want, T))


def test_a_step_that_fails_leaves_the_state_as_it_was(
    model_of: Callable[..., Model], ids_of: Callable[..., Tensor], rounding: Callable[..., float]
) -> None:
    model = model_of(position="rotary_half", dtype=torch.float64)
    source, target = ids_of(B, S, 1), ids_of(B, T, 2)
    with torch.no_grad():
        want = model(source=source, target=target)["logits"]
    state = model.start(source=source)
    first = steps(model, state, target[:, :3], [3])

    def fail(*_: object) -> None:
        raise RuntimeError("out of memory, say")

    handle = model.nodes["decoder"].layers[1].register_forward_pre_hook(fail)
    with pytest.raises(RuntimeError, match="say"):
        model.step(state, target[:, 3:5], True)
    handle.remove()
    got = torch.cat([first, steps(model, state, target[:, 3:], [2, 6])], 1)
    close(got, want, rounding(model, want, T))


def test_segments_of_the_target_are_given_step_by_step(catalogue: tfkit.Catalogue, rounding: Callable[..., float]) -> None:
    text = (
        "{tfkit: 1, name: a, defaults: {d_model: 8, norm: layer_norm, placement: pre, attention: {num_heads: 2}, "
        "ffn: {d_ff: 8, activation: relu}}, nodes: {ids: {kind: tokens, vocab_size: 9, segments: 2}, "
        "body: {kind: stack, input: ids, num_layers: 2, causal: true}}, outputs: [body]}"
    )
    model = tfkit.build(tfkit.parse_spec(text, catalogue), catalogue, dtype=torch.float64).eval()
    ids, segments = torch.tensor([[1, 2, 3, 4], [5, 6, 7, 8]]), torch.tensor([[0, 0, 1, 1], [1, 0, 1, 0]])
    state = model.start(batch=2)
    with torch.no_grad():
        whole = model(ids=ids, segments={"ids": segments})["body"]
    steps = [model.step(state, ids[:, n : n + 2], segments=segments[:, n : n + 2])["body"] for n in (0, 2)]
    torch.testing.assert_close(torch.cat(steps, 1), whole, rtol=0, atol=rounding(model, whole, 4))
    with torch.no_grad():
        assert float((model(ids=ids)["body"] - whole).abs().max()) > 0.01, "the segments change what is compared"
    with pytest.raises(tfkit.InputError, match="TFK070"):
        model.step(state, ids[:, :1], segments=segments)


def test_a_cache_on_a_cpu_has_little_more_room_than_it_uses():
    cache, plain = KeyValueCache(100), []
    for length in range(1, 140):
        new = torch.randn(2, 3, 1, 4)
        plain.append(new)
        key, value = cache.write(length - 1, new, -new)
        assert torch.equal(key, torch.cat(plain, 2))
        assert torch.equal(value, -key)
        assert length <= cache.key.shape[2] <= length + max(8, length // 8)
        assert length > 100 or cache.key.shape[2] <= 100


@pytest.mark.parametrize(("start", "rooms"), [(1, {4}), (4, {4}), (5, {10})])
def test_a_cache_elsewhere_has_its_capacity_at_once(start, rooms):
    cache = KeyValueCache(4)
    cache.write(0, torch.zeros(1, 1, start, 2, device="meta"), torch.zeros(1, 1, start, 2, device="meta"))
    assert {cache.key.shape[2], cache.value.shape[2]} == rooms


@pytest.mark.parametrize("inside", [False, True])
def test_a_step_outside_of_autocast_after_one_inside_says_so(
    inside: bool, model_of: Callable[..., Model], ids_of: Callable[..., Tensor]
) -> None:
    model, ids = model_of("decoder", backend="eager"), ids_of(2, 1)
    state = model.start(batch=2)
    with torch.autocast("cpu", torch.bfloat16, enabled=inside):
        model.step(state, ids)
    message = r"TFK071 the keys of `body\.0\.self_attention` are (bfloat16|float32) .*inside the same torch\.autocast"
    with pytest.raises(tfkit.InputError, match=message), torch.autocast("cpu", torch.bfloat16, enabled=not inside):
        model.step(state, ids)
    with torch.autocast("cpu", torch.bfloat16, enabled=inside):
        model.step(state, ids)
    assert state.length == 2
