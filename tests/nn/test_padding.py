"""Padding hides the same tokens in every form in which it is given; hidden tokens change no bit of the output."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from tfkit import Model
from tfkit.nn.runtime.inputs import padding_from_ids
from tfkit.plugin.model_parts import InputRule

B, S, T = 3, 9, 8
REAL_SOURCE = torch.tensor([9, 4, 1])[:, None] > torch.arange(S)
REAL_TARGET = torch.tensor([8, 8, 5])[:, None] > torch.arange(T)
SCHEMES = ["sinusoidal", "rotary_half", "alibi", "relative_t5", "relative_shaw", "{kind: learned, max_len: 9, count: visible}"]


@pytest.fixture
def pair(ids_of: Callable[..., Tensor]) -> dict[str, Tensor]:
    return {"source": ids_of(B, S, 1).where(REAL_SOURCE, 0), "target": ids_of(B, T, 2).where(REAL_TARGET, 0)}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "scheme"),
    [(backend, scheme) for backend in ("eager", "sdpa") for scheme in SCHEMES] + [("flex", "rotary_half"), ("flex", "alibi")],
)
def test_pad_ids_masks_and_lengths_say_the_same(
    backend: str, scheme: str, model_of: Callable[..., Model], pair: dict[str, Tensor], rounding: Callable[..., float]
) -> None:
    model = model_of(
        "encoder-decoder", "encoder.num_layers=1", "decoder.num_layers=1", position=scheme, dtype=torch.float64, backend=backend
    )
    masks = {"source": REAL_SOURCE, "target": REAL_TARGET}
    lengths = {"source": torch.tensor([9, 4, 1]), "target": torch.tensor([8, 8, 5])}
    with torch.no_grad():
        by_id = model(**pair)["logits"]
        masked = model(**pair, masks=masks)["logits"]
        counted = model(**pair, lengths=lengths)["logits"]
    assert torch.equal(by_id, masked)
    assert float((counted - by_id)[REAL_TARGET].abs().max()) <= rounding(model, by_id, S)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "scheme"),
    [(backend, scheme) for backend in ("eager", "sdpa") for scheme in SCHEMES[:5:2]] + [("flex", "alibi")],
)
def test_a6_hidden_keys_change_no_bit(
    scheme: str, backend: str, model_of: Callable[..., Model], pair: dict[str, Tensor], ids_of: Callable[..., Tensor]
) -> None:
    model = model_of("encoder-decoder", "decoder.num_layers=1", position=scheme, backend=backend)
    masks = {"source": REAL_SOURCE, "target": REAL_TARGET}
    lengths = {"source": torch.tensor([9, 4, 1]), "target": torch.tensor([8, 8, 5])}
    other = {
        "source": ids_of(B, S, 5).where(~REAL_SOURCE, pair["source"]),
        "target": ids_of(B, T, 6).where(~REAL_TARGET, pair["target"]),
    }
    assert not torch.equal(other["source"], pair["source"])
    with torch.no_grad():
        for how in ({"masks": masks}, {"lengths": lengths}):
            assert torch.equal(model(**other, **how)["logits"][REAL_TARGET], model(**pair, **how)["logits"][REAL_TARGET])


@pytest.mark.slow
@pytest.mark.parametrize("scheme", SCHEMES)
def test_a_padded_row_equals_the_row_alone(
    scheme: str, model_of: Callable[..., Model], pair: dict[str, Tensor], rounding: Callable[..., float]
) -> None:
    model = model_of(position=scheme, dtype=torch.float64)
    with torch.no_grad():
        fold_beams = model(**pair)["logits"]
        for row in range(B):
            s, t = int(REAL_SOURCE[row].sum()), int(REAL_TARGET[row].sum())
            alone = model(source=pair["source"][row : row + 1, :s], target=pair["target"][row : row + 1, :t])["logits"][0]
            assert float((fold_beams[row, :t] - alone).abs().max()) <= rounding(model, fold_beams, S)


@pytest.mark.slow
@pytest.mark.parametrize(
    "scheme",
    ["none", "rotary_half", "alibi", "relative_t5", "relative_shaw", "{kind: learned, max_len: 9, count: visible}",
     "{kind: sinusoidal, count: visible}"],
)  # fmt: skip
def test_left_padding_does_not_shift_relative_or_visible_positions(
    scheme: str, model_of: Callable[..., Model], pair: dict[str, Tensor], rounding: Callable[..., float]
) -> None:
    model = model_of(position=scheme, dtype=torch.float64)
    moved = {name: torch.stack([row.roll(int((row == 0).sum())) for row in ids]) for name, ids in pair.items()}
    left = moved["target"] != 0
    assert not torch.equal(left, REAL_TARGET)
    with torch.no_grad():
        want, got = model(**pair)["logits"][REAL_TARGET], model(**moved)["logits"][left]
    assert float((got - want).abs().max()) <= rounding(model, want, S)


def test_left_padding_shifts_absolute_positions(model_of: Callable[..., Model], ids_of: Callable[..., Tensor]) -> None:
    model = model_of("decoder", position="sinusoidal", dtype=torch.float64)
    ids = ids_of(1, 5)
    with torch.no_grad():
        moved = model(tokens=torch.cat([torch.zeros(1, 3, dtype=torch.int64), ids], 1))["logits"][:, 3:]
        assert float((moved - model(tokens=ids)["logits"]).abs().max()) > 1e-3


@pytest.mark.parametrize(
    ("ids", "visible"),
    [
        ([0, 5, 6, 7], "1111"),
        ([0, 5, 6, 0], "1110"),
        ([0, 0, 0, 5], "0011"),
        ([0, 0, 0, 0], "1000"),
        ([5, 0, 6, 0], "1010"),
        ([0, 5, 0, 6], "1101"),
        ([0], "1"),
    ],
)
def test_a_start_token_is_never_padding_even_where_the_ids_are_equal(ids: list[int], visible: str) -> None:
    found = padding_from_ids(torch.tensor([ids]), rule(pad=0, start=0)).visible
    assert found is not None
    assert "".join(str(int(bit)) for bit in found[0]) == visible


def rule(pad: int | None, start: int) -> InputRule:
    return InputRule(9, pad, start, 2, 0, False)


def test_without_a_pad_id_nothing_is_padding() -> None:
    assert padding_from_ids(torch.tensor([[0, 1]]), rule(pad=None, start=0)).visible is None
    found = padding_from_ids(torch.tensor([[0, 1]]), rule(pad=0, start=1)).visible
    assert found is not None
    assert found.tolist() == [[False, True]]


@pytest.mark.parametrize("start", ["1", "2", "null"])
def test_an_end_token_that_is_also_the_id_of_padding_is_seen(start: str, model_of: Callable[..., Model]) -> None:
    """The turns of a chat end in the middle of it. What is padding there, a call says."""
    model = model_of("decoder", "tokens.pad_id=2", f"tokens.start_id={start}", position="alibi", dtype=torch.float64)
    ids = torch.tensor([[1, 5, 2, 6, 7, 2, 8], [5, 6, 2, 2, 2, 2, 2]])
    lengths = torch.tensor([7, 3])
    seen = torch.arange(7) < lengths[:, None]
    with torch.no_grad():
        expected = model(tokens=ids, lengths={"tokens": torch.tensor([7, 7])})["logits"]
        assert torch.equal(model(tokens=ids)["logits"], expected)
        shorter = model(tokens=ids, lengths={"tokens": lengths})["logits"]
        torch.testing.assert_close(shorter[seen], expected[seen], rtol=1e-12, atol=1e-12)
        other = model(tokens=ids.where(ids != 2, 9))["logits"]  # another token at these places
        assert float((other - expected)[0, 4].abs().max()) > 1e-3
        state = model.start("tokens", batch=2, capacity=9)
        steps = [model.step(state, ids[:, part])["logits"] for part in (slice(0, 3), slice(3, 7))]
        torch.testing.assert_close(torch.cat(steps, 1), expected, rtol=1e-12, atol=1e-12)


def test_the_first_token_of_t5_is_seen(model_of: Callable[..., Model], ids_of: Callable[..., Tensor]) -> None:
    model = model_of("encoder-decoder", "target.start_id=0", position="relative_t5")
    source, target = ids_of(2, 5, 1), ids_of(2, 6, 2)
    target[:, 0] = 0
    target[1, 4:] = 0
    masks = {"target": torch.tensor([[True] * 6, [True] * 4 + [False] * 2])}
    with torch.no_grad():
        assert torch.equal(
            model(source=source, target=target)["logits"], model(source=source, target=target, masks=masks)["logits"]
        )
        _, weights = (
            model(source=source, target=target, weights=["decoder.0.self_attention"])[key] for key in ("logits", "weights")
        )
    assert bool((weights["decoder.0.self_attention"][:, :, 1, 0] > 0).all())


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "scheme"),
    [(backend, scheme) for backend in ("eager", "sdpa") for scheme in SCHEMES[:5]] + [("flex", "sinusoidal")],
)
def test_later_tokens_change_no_bit_of_a_decoder(
    scheme: str, backend: str, model_of: Callable[..., Model], ids_of: Callable[..., Tensor]
) -> None:
    model = model_of("decoder", "body.num_layers=2", position=scheme, backend=backend)
    ids, other = ids_of(2, T, 1), ids_of(2, T, 2)
    with torch.no_grad():
        want = model(tokens=ids)["logits"]
        for seen in (1, 4, T - 1):
            got = model(tokens=torch.cat([ids[:, :seen], other[:, seen:]], 1))["logits"]
            assert torch.equal(got[:, :seen], want[:, :seen])
            assert not torch.equal(got[:, seen], want[:, seen])


def test_a_row_without_any_real_token_gives_numbers(model_of: Callable[..., Model], ids_of: Callable[..., Tensor]) -> None:
    model = model_of().train()
    source, target = ids_of(2, 5, 1), ids_of(2, 6, 2)
    source[1] = 0
    outputs = model(source=source, target=target)["logits"]
    gradients = torch.autograd.grad(outputs.sum(), list(model.parameters()))
    assert bool(outputs.isfinite().all())
    assert all(bool(gradient.isfinite().all()) for gradient in gradients)


@pytest.mark.parametrize("take", ["first", "last", "mean", "max"])
@pytest.mark.parametrize("side", ["right", "left"])
def test_a_pool_takes_real_tokens_only(
    side: str, take: str, model_of: Callable[..., Model], ids_of: Callable[..., Tensor], rounding: Callable[..., float]
) -> None:
    nodes = f"""
nodes:
  tokens: {{kind: tokens}}
  body:   {{kind: stack, input: tokens, num_layers: 1}}
  one:    {{kind: pool, input: body, take: {take}}}
  label:  {{kind: classify, input: one, classes: 4}}
outputs: [label]
"""
    model = model_of(nodes, position="rotary_half", dtype=torch.float64)
    ids = ids_of(2, 6)
    padded = torch.cat([ids, torch.zeros(2, 3, dtype=torch.int64)], 1)
    with torch.no_grad():
        want = model(tokens=ids)["label"]
        got = model(tokens=padded if side == "right" else padded.roll(3, 1))["label"]
    assert want.shape == (2, 4)
    assert float((got - want).abs().max()) <= rounding(model, want, 9)
