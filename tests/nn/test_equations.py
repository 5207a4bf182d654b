"""The model's own arithmetic: against torch.nn.Transformer with the same weights, and against each scalar's equation."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from tfkit import Model


@pytest.fixture
def pair(ids_of: Callable[..., Tensor]) -> dict[str, Tensor]:
    source, target = ids_of(3, 9, 1), ids_of(3, 8, 2)
    source[1, 6:] = 0
    target[2, 5:] = 0
    return {"source": source, "target": target}


def attention_weights(ours: Any, theirs: nn.MultiheadAttention) -> None:
    parts = (ours.query, ours.key, ours.value)
    theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
    theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
    theirs.out_proj.load_state_dict(ours.output.state_dict())


def torch_stack(ours: Any, decoder: bool, norm_first: bool) -> nn.Module:
    """torch's stack with the weights of ours."""
    kind = nn.TransformerDecoderLayer if decoder else nn.TransformerEncoderLayer
    layers = nn.ModuleList()
    names = ["self_attention", "cross_attention", "ffn"] if decoder else ["self_attention", "ffn"]
    for layer in ours.layers:
        theirs = kind(24, 6, 20, 0.0, "relu", 1e-5, True, norm_first, dtype=torch.float64)
        with torch.no_grad():
            attention_weights(layer.branches["self_attention"], theirs.self_attn)
            if decoder:
                attention_weights(layer.branches["cross_attention"], theirs.multihead_attn)
        theirs.linear1.load_state_dict(layer.branches["ffn"].input.state_dict())
        theirs.linear2.load_state_dict(layer.branches["ffn"].output.state_dict())
        for number, name in enumerate(names, 1):
            getattr(theirs, f"norm{number}").load_state_dict(layer.norms[name].state_dict())
        layers.append(theirs)
    stack = nn.TransformerDecoder(layers[0], 0) if decoder else nn.TransformerEncoder(layers[0], 0, enable_nested_tensor=False)
    stack.layers, stack.num_layers = layers, len(layers)
    stack.norm = None if ours.final_norm is None else ours.final_norm
    return stack.train()  # nothing is dropped, and torch's inference path would cut off padding


@pytest.mark.parametrize("placement", ["post", "pre"])
def test_the_paper_s_model_is_torch_s(
    placement: str, model_of: Callable[..., Model], pair: dict[str, Tensor], rounding: Callable[..., float]
) -> None:
    scaled = ("source.scale=sqrt_d_model", "target.scale=sqrt_d_model", "encoder.num_layers=3")
    model = model_of("encoder-decoder", *scaled, placement=placement, activation="relu", dtype=torch.float64)
    encoder, decoder = (
        torch_stack(model.nodes[name], name == "decoder", placement == "pre") for name in ("encoder", "decoder")
    )
    table = model.nodes["source"].embedding.weight
    t, i = torch.arange(9, dtype=torch.float64)[:, None], torch.arange(0, 24, 2, dtype=torch.float64)
    waves = torch.stack([torch.sin(t / 10000 ** (i / 24)), torch.cos(t / 10000 ** (i / 24))], 2).flatten(1)
    hidden = {name: ids == 0 for name, ids in pair.items()}
    with torch.no_grad():
        x, y = (table[ids] * 24**0.5 + waves[: ids.shape[1]] for ids in (pair["source"], pair["target"]))
        memory = encoder(x, src_key_padding_mask=hidden["source"])
        later = nn.Transformer.generate_square_subsequent_mask(8).isinf()
        out = decoder(
            y, memory, tgt_mask=later, tgt_key_padding_mask=hidden["target"], memory_key_padding_mask=hidden["source"]
        )
        want, got = out @ table.T, model(**pair)["logits"]
    assert float((got - want)[~hidden["target"]].abs().max()) <= rounding(model, want, 9)


def seen(model: Model, **inputs: Tensor) -> dict[str, tuple[Tensor, Tensor]]:
    """What went into and came out of every module of the first decoder layer, by name, with the layer itself as ``""``."""
    found: dict[str, tuple[Tensor, Tensor]] = {}
    for name, module in model.nodes["decoder"].layers[0].named_modules():
        module.register_forward_hook(lambda module, args, output, name=name: found.__setitem__(name, (args[0], output)))
    with torch.no_grad():
        model(**inputs)
    return found


N, M = 2, 3
"""Encoder and decoder layers."""
SKIPS = {"post": 1.0, "pre": 1.0, "sandwich": 1.0, "residual_post": 1.0, "parallel": 1.0, "none": 1.0,
         "deepnorm": (3 * M) ** 0.25}  # fmt: skip


@pytest.mark.parametrize("placement", SKIPS)
def test_a_layer_is_its_placement_s_equation(placement: str, model_of: Callable[..., Model], pair: dict[str, Tensor]) -> None:
    sublayers = "decoder.sublayers=[self_attention, {kind: cross_attention, residual_scale: 0.5}, ffn]"
    depths = (f"encoder.num_layers={N}", f"decoder.num_layers={M}")
    found = seen(model_of("encoder-decoder", sublayers, *depths, placement=placement, dtype=torch.float64), **pair)
    layer = {
        name: values for name, values in found.items() if name.startswith(("branches.", "norms.")) and name.count(".") == 1
    }
    x, result = found[""]
    skip, total = SKIPS[placement], x
    for name, scale in (("self_attention", 1.0), ("cross_attention", 0.5), ("ffn", 1.0)):
        read, branch = layer[f"branches.{name}"]
        if placement == "post" or placement == "deepnorm":
            torch.testing.assert_close(read, x)
            torch.testing.assert_close(layer[f"norms.{name}"][0], skip * x + scale * branch)
            x = layer[f"norms.{name}"][1]
        elif placement == "pre":
            torch.testing.assert_close(layer[f"norms.{name}"][0], x)
            torch.testing.assert_close(read, layer[f"norms.{name}"][1])
            x = x + scale * branch
        elif placement == "sandwich":
            torch.testing.assert_close(layer[f"norms.{name}_in"][0], x)
            torch.testing.assert_close(read, layer[f"norms.{name}_in"][1])
            torch.testing.assert_close(layer[f"norms.{name}_out"][0], branch)
            x = x + scale * layer[f"norms.{name}_out"][1]
        elif placement == "residual_post":
            torch.testing.assert_close(read, x)
            torch.testing.assert_close(layer[f"norms.{name}"][0], branch)
            x = x + scale * layer[f"norms.{name}"][1]
        elif placement == "parallel":
            torch.testing.assert_close(read, layer["norms.shared"][1])
            total = total + scale * branch
        else:
            torch.testing.assert_close(read, x)
            x = x + scale * branch
    torch.testing.assert_close(result, total if placement == "parallel" else x)


@pytest.mark.parametrize(
    ("window", "left", "right", "causal"),
    [("3", 2, 0, True), ("1", 0, 0, True), ("[2, 1]", 2, 0, True), ("[2, 1]", 2, 1, False), ("[null, 1]", 99, 1, False)],
)
@pytest.mark.parametrize("backend", ["eager", "sdpa"])
def test_a4_a_window_shows_exactly_its_keys(
    backend: str,
    window: str,
    left: int,
    right: int,
    causal: bool,
    model_of: Callable[..., Model],
    ids_of: Callable[..., Tensor],
) -> None:
    overrides = (f"body.attention.window={window}", f"body.causal={str(causal).lower()}", "body.num_layers=1")
    model = model_of("decoder", *overrides, backend=backend)
    ids = ids_of(1, 8)
    weights = model(tokens=ids, weights="*")["weights"]["body.0.self_attention"]
    distance = torch.arange(8) - torch.arange(8)[:, None]
    shown = (distance >= -left) & (distance <= right)
    assert torch.equal(weights > 0, shown.expand_as(weights))
    with torch.no_grad():  # without gradients too: a token outside every window of a row changes nothing there
        want = model(tokens=ids)["logits"]
        for key in range(8):
            other = ids.clone()
            other[0, key] = 3 + (ids[0, key] - 2) % 16
            moved = (model(tokens=other)["logits"] != want).any(2)[0]
            assert torch.equal(moved, shown[:, key] | (torch.arange(8) == key))


@pytest.mark.parametrize(
    ("override", "changed"),
    [
        ("logits.softcap=3.0", lambda logits: 3.0 * torch.tanh(logits / 3.0)),
        ("logits.scale=0.25", lambda logits: 0.25 * logits),
        ("logits.scale=inverse_sqrt_d_model", lambda logits: 24**-0.5 * logits),
    ],
)
def test_scalars_of_the_logits(
    override: str, changed: Callable[[Tensor], Tensor], model_of: Callable[..., Model], pair: dict[str, Tensor]
) -> None:
    with torch.no_grad():
        plain, got = (model_of(*names, dtype=torch.float64)(**pair)["logits"] for names in ((), ("encoder-decoder", override)))
    torch.testing.assert_close(got, changed(plain))


def test_scalars_of_attention(model_of: Callable[..., Model], pair: dict[str, Tensor]) -> None:
    """Scale and softcap, read from the weights of the first layer: softmax of c tanh(s q.k / c)."""
    overrides = ("defaults.attention.softcap=2.0", "defaults.attention.scale=0.7", "defaults.attention.num_kv_heads=2")
    model = model_of("decoder", *overrides, dtype=torch.float64)
    attention = model.nodes["body"].layers[0].branches["self_attention"]
    projected: list[Tensor] = []
    for part in (attention.query, attention.key):
        part.register_forward_hook(lambda module, args, output: projected.append(output))
    with torch.no_grad():
        weights = model(tokens=pair["target"], masks={"tokens": torch.ones(3, 8, dtype=torch.bool)}, weights="*")["weights"]
    query = projected[0].view(3, 8, 6, 4).transpose(1, 2)
    key = projected[1].view(3, 8, 2, 4).transpose(1, 2).repeat_interleave(3, 1)  # head h reads key head h // 3
    scores = 2.0 * torch.tanh(0.7 * query @ key.mT / 2.0)
    scores = scores.masked_fill(torch.ones(8, 8).triu(1).bool(), -torch.inf)
    torch.testing.assert_close(weights["body.0.self_attention"], scores.softmax(3))


def test_the_sum_of_embeddings(model_of: Callable[..., Model], ids_of: Callable[..., Tensor]) -> None:
    """norm(scale E[id] + S[segment] + P[position]), and a plain dense node behind it."""
    nodes = """
nodes:
  tokens: {kind: tokens, segments: 2, scale: 3.0, embedding_norm: layer_norm}
  wide:   {kind: dense, input: tokens, d_model: 30, activation: tanh}
  body:   {kind: stack, input: wide, num_layers: 1}
outputs: [tokens, wide, body]
"""
    model = model_of(nodes, position="{kind: learned, max_len: 12, offset: 2}")
    ids = ids_of(2, 6)
    segments = (torch.arange(6) > 2).long().expand(2, 6)
    with torch.no_grad():
        got = model(tokens=ids, segments={"tokens": segments})
        first = model(tokens=ids)
        part = model.nodes["tokens"]
        summed = 3.0 * part.embedding.weight[ids] + part.segments.weight[segments] + part.position.table[2:8]
        norm = nn.functional.layer_norm(summed, (24,), part.embedding_norm.weight, part.embedding_norm.bias, 1e-5)
        torch.testing.assert_close(got["tokens"], norm)
        torch.testing.assert_close(got["wide"], torch.tanh(model.nodes["wide"].linear(norm)))
    assert not torch.equal(first["tokens"][:, 3:], got["tokens"][:, 3:])
    torch.testing.assert_close(first["tokens"][:, :3], got["tokens"][:, :3])


def test_a_mix_of_layers(model_of: Callable[..., Model], ids_of: Callable[..., Tensor]) -> None:
    nodes = """
nodes:
  tokens: {kind: tokens}
  body:   {kind: stack, input: tokens, num_layers: 3}
  all:    {kind: layer_mix, input: body.layers}
  above:  {kind: layer_mix, input: body.layers, embeddings: false}
outputs: [tokens, all, above]
"""
    model = model_of(nodes)
    layers: list[Tensor] = []
    for layer in model.nodes["body"].layers:
        layer.register_forward_hook(lambda module, args, output: layers.append(output))
    with torch.no_grad():
        got = model(tokens=ids_of(2, 5))
        for name, mixed in (("all", [got["tokens"], *layers]), ("above", layers)):
            node = model.nodes[name]
            shares = node.weight.softmax(0)
            assert len(shares) == len(mixed)
            torch.testing.assert_close(got[name], node.scale * sum(s * h for s, h in zip(shares, mixed, strict=True)))
