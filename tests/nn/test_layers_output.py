"""The layers of a stack as an output of the model: `outputs: [encoder.layers]`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import tfkit
from tfkit import InputError, Model

NODES = """
nodes:
  source:  {kind: tokens}
  target:  {kind: tokens, share: source, start_id: 1}
  encoder: {kind: stack, input: source, num_layers: 2}
  decoder: {kind: stack, input: target, memory: encoder, num_layers: 3, causal: true}
  logits:  {kind: token_logits, input: decoder, share: source}
outputs: [logits, source, encoder.layers, decoder.layers, decoder]
"""
B, S, T = 3, 6, 5


def prefixes(model_of: Callable[..., Model], whole: Model, depth: int) -> Model:
    """The model with the first `depth` layers of its decoder, which has no final norm."""
    shorter = model_of(NODES, f"decoder.num_layers={depth}", placement="post", dtype=torch.float64)
    shorter.load_state_dict(whole.state_dict(), strict=False)
    return shorter


def test_index_0_is_what_the_first_layer_reads_and_index_n_the_output_of_a_stack_of_n_layers(
    model_of: Callable[..., Model], ids_of: Callable[..., Tensor]
) -> None:
    model = model_of(NODES, placement="post", dtype=torch.float64).eval()
    given = {"source": ids_of(B, S, 1), "target": ids_of(B, T, 2)}
    outputs = model(**given)
    assert list(outputs) == ["logits", "source", "encoder.layers", "decoder.layers", "decoder"]
    assert outputs["encoder.layers"].shape == (3, B, S, 24)
    assert torch.equal(outputs["encoder.layers"][0], outputs.source)
    layers = outputs["decoder.layers"]
    assert torch.equal(layers[3], outputs.decoder)
    for depth in (1, 2):
        torch.testing.assert_close(layers[depth], prefixes(model_of, model, depth).eval()(**given).decoder, rtol=0, atol=1e-12)


def test_a_final_norm_comes_after_the_last_layer(model_of: Callable[..., Model], ids_of: Callable[..., Tensor]) -> None:
    model = model_of(NODES, placement="pre", dtype=torch.float64).eval()
    outputs = model(source=ids_of(B, S, 1), target=ids_of(B, T, 2))
    gain, bias = (model.get_parameter(f"nodes.decoder.final_norm.{name}") for name in ("weight", "bias"))
    last = torch.nn.functional.layer_norm(outputs["decoder.layers"][-1], (24,), gain, bias)
    torch.testing.assert_close(last, outputs.decoder, rtol=0, atol=1e-12)


def test_decoding_steps_return_the_layers_of_the_decoder(model_of: Callable[..., Model], ids_of: Callable[..., Tensor]) -> None:
    model = model_of(NODES, dtype=torch.float64).eval()
    source, target = ids_of(B, S, 1), ids_of(B, T, 2)
    want = model(source=source, target=target)
    state = model.start(source=source)
    first, rest = model.step(state, target[:, :2]), model.step(state, target[:, 2:])
    assert "encoder.layers" not in first
    assert first["decoder.layers"].shape == (4, B, 2, 24)
    got = torch.cat([first["decoder.layers"], rest["decoder.layers"]], 2)
    torch.testing.assert_close(got, want["decoder.layers"], rtol=0, atol=1e-12)


def test_layers_have_gradients_but_no_labels_and_survive_saving(
    model_of: Callable[..., Model], ids_of: Callable[..., Tensor], tmp_path: Path
) -> None:
    model = model_of(NODES).eval()
    given = {"source": ids_of(B, S, 1), "target": ids_of(B, T, 2)}
    outputs = model(**given)
    outputs["encoder.layers"][1].sum().backward()
    learns = [any(p.grad is not None and p.grad.any() for p in layer.parameters()) for layer in model.nodes["encoder"].layers]
    assert learns == [True, False]
    assert torch.equal(model(labels=ids_of(B, T, 3), **given)["encoder.layers"], outputs["encoder.layers"])
    with pytest.raises(InputError, match=r"labels name `encoder\.layers`.*logits"):
        model(labels={"encoder.layers": ids_of(B, T, 3)}, **given)
    tfkit.save(model, tmp_path / "model")
    again = tfkit.load(tmp_path / "model").eval()(**given)
    assert list(again) == list(outputs)
    assert torch.equal(again["decoder.layers"], outputs["decoder.layers"])
