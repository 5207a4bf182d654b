"""A7: dropout acts in training only, everywhere it is written, from torch's default generator."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

import tfkit
from tfkit import Model

PLACES = ["defaults.dropout=0.4", "defaults.attention.dropout=0.4", "defaults.ffn.dropout=0.4"]


@pytest.fixture
def pair(ids_of: Callable[..., Tensor]) -> dict[str, Tensor]:
    return {"source": ids_of(2, 9, 1), "target": ids_of(2, 8, 2)}


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["eager", "sdpa"])
@pytest.mark.parametrize("place", PLACES)
def test_a7_only_in_training_and_repeatable(
    place: str, backend: str, model_of: Callable[..., Model], pair: dict[str, Tensor]
) -> None:
    without, model = model_of(backend=backend), model_of("encoder-decoder", place, backend=backend)
    with torch.no_grad():
        want = without(**pair)["logits"]
        assert torch.equal(without.train()(**pair)["logits"], want)
        assert torch.equal(model(**pair)["logits"], want)
        model.train()
        torch.manual_seed(1)
        first = model(**pair)["logits"]
        second = model(**pair)["logits"]
        torch.manual_seed(1)
        assert torch.equal(model(**pair)["logits"], first)
    assert not torch.equal(first, want)
    assert not torch.equal(first, second)


def test_a7_survivors_are_scaled_up(catalogue: tfkit.Catalogue, ids_of: Callable[..., Tensor]) -> None:
    text = "{tfkit: 1, name: e, nodes: {tokens: {kind: tokens, d_model: 24, vocab_size: 19, dropout: 0.25}}, outputs: [tokens]}"
    model = tfkit.build(tfkit.parse_spec(text, catalogue), catalogue).eval()
    ids = ids_of(20, 30)
    plain = model(tokens=ids)["tokens"]
    dropped = model.train()(tokens=ids)["tokens"]
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], plain[kept] / 0.75)
    # 14,400 elements: five standard deviations of their share are 5 * sqrt(0.25 * 0.75 / 14400) = 0.018.
    assert abs(float(kept.float().mean()) - 0.75) < 0.019


@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_a7_attention_dropout_is_on_the_weights(
    backend: str, model_of: Callable[..., Model], ids_of: Callable[..., Tensor]
) -> None:
    """One-hot values read the draw out: each weight is gone or 1/(1-p) times itself."""
    model = model_of(
        "decoder", "body.num_layers=1", "defaults.d_model=8", "defaults.attention={num_heads: 1, dropout: 0.5}", backend=backend
    ).train()
    attention = model.nodes["body"].layers[0].branches["self_attention"]
    merged: list[Tensor] = []
    attention.value.register_forward_hook(lambda module, inputs, output: torch.eye(8).expand(16, 8, 8))
    attention.output.register_forward_pre_hook(lambda module, inputs: merged.append(inputs[0]))
    weights = model(tokens=ids_of(16, 8), weights="*")["weights"]["body.0.self_attention"][:, 0]
    kept = merged[0] != 0
    torch.testing.assert_close(merged[0][kept], (2 * weights)[kept])
    visible = weights > 0
    assert bool((kept <= visible).all())
    # 16 * 36 weights: five standard deviations are 5 * sqrt(0.25 / 576) = 0.104.
    assert abs(float(kept.sum() / visible.sum()) - 0.5) < 0.105
