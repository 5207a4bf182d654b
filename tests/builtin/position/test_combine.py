"""`combine`: a position is added to an embedding, concatenated with it and projected, or appended to it."""

from __future__ import annotations

import pytest
import torch

import tfkit
from tfkit import SpecError
from tfkit.builtin.position.embedding_positions import learned as build
from tfkit.builtin.position.entries import LearnedOptions
from tfkit.plugin.model_parts import PositionSite

SPEC = """
tfkit: 1
name: wide
defaults:
  d_model: 24
  vocab_size: 19
  pad_id: 0
  placement: pre
  norm: layer_norm
  attention: {num_heads: 4}
  ffn: {d_ff: 20, activation: relu}
nodes:
  tokens: {kind: tokens, start_id: 1, end_id: 2, position: POSITION, embedding_norm: layer_norm, segments: 2}
  body:   {kind: stack, input: tokens, num_layers: 2, causal: true}
  logits: {kind: token_logits, input: body}
outputs: [logits, tokens]
"""
APPENDED = ["{kind: sinusoidal, combine: append, d_position: 8}", "{kind: learned, max_len: 9, combine: append, d_position: 8}"]


def test_learned_concat_projects_embedding_and_row(span_of):
    torch.manual_seed(0)
    module = build(LearnedOptions(max_len=9, combine="concat", d_position=3), PositionSite(6)).double()
    torch.nn.init.normal_(module.table)
    x = torch.randn(2, 5, 6, dtype=torch.float64)
    left, right = module.projection.weight[:, :6], module.projection.weight[:, 6:]
    want = x @ left.T + module.table[2:7] @ right.T
    torch.testing.assert_close(module.embed(x, span_of(5, offset=2, dtype=torch.float64)), want, rtol=0, atol=1e-12)


@pytest.mark.parametrize("position", APPENDED)
def test_appended_positions_widen_the_stream(position, catalogue):
    model = tfkit.build(tfkit.parse_spec(SPEC.replace("POSITION", position), catalogue), catalogue).double().eval()
    graph = tfkit.graph_of(model.spec)
    assert [node.signal.width for node in graph.nodes.values()] == [32, 32, 19]
    # table, segments, norm of 32; per layer: 4 projections 32 x 32 and biases, ffn, 2 norms; final norm; logits
    layer = 4 * (32 * 32 + 32) + (32 * 20 + 20) + (20 * 32 + 32) + 2 * 64
    table = 9 * 8 if "learned" in position else 0
    assert model.parameter_count() == graph.parameters() == 19 * 24 + 2 * 24 + table + 64 + 2 * layer + 64 + 32 * 19
    ids = torch.tensor([[1, 5, 6, 7, 8], [1, 9, 9, 9, 3]])
    with torch.no_grad():
        outputs = model(tokens=ids)
        node = model.nodes["tokens"]
        if "learned" in position:
            p = node.position.table[:5]
        else:
            angles = torch.arange(5.0, dtype=torch.float64)[:, None] * 10000 ** (-torch.arange(0, 8, 2) / 8)
            p = torch.stack([angles.sin(), angles.cos()], 2).flatten(1)
        x = torch.cat([node.embedding.weight[ids] + node.segments.weight[0], p.expand(2, -1, -1)], 2)
        want = torch.nn.functional.layer_norm(x, (32,), node.embedding_norm.weight, node.embedding_norm.bias)
        torch.testing.assert_close(outputs["tokens"], want, rtol=0, atol=1e-6)
        state = model.start(batch=2)
        steps = torch.cat([model.step(state, ids[:, :2])["logits"], model.step(state, ids[:, 2:])["logits"]], 1)
        torch.testing.assert_close(steps, outputs["logits"], rtol=0, atol=1e-12)


def test_patches_with_registers_and_convolutions_widen_too(catalogue):
    text = """
tfkit: 1
name: seen
defaults: {placement: pre, norm: layer_norm, attention: {num_heads: 4}, ffn: {d_ff: 20, activation: relu}}
nodes:
  image:  {kind: patches, size: 8, patch: 4, d_model: 12, registers: 2, position: {kind: learned}, embedding_norm: layer_norm}
  frames: {kind: features, size: 5}
  short:  {kind: convolutions, input: frames, convolutions: [{d_model: 12, width: 3, stride: 2}], position: {kind: sinusoidal}}
  one:    {kind: stack, input: image, num_layers: 1}
  two:    {kind: stack, input: short, num_layers: 1}
outputs: [one, two]
"""
    text = text.replace("{kind: learned}", "{kind: learned, combine: append, d_position: 4}")
    text = text.replace("{kind: sinusoidal}", "{kind: sinusoidal, combine: append, d_position: 4}")
    model = tfkit.build(tfkit.parse_spec(text, catalogue), catalogue)
    outputs = model(image=torch.randn(2, 3, 8, 8), frames=torch.randn(2, 6, 5))
    assert (outputs.one.shape, outputs.two.shape) == ((2, 6, 16), (2, 3, 16))  # 4 patches and 2 registers


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        (
            "POSITION",
            "{kind: sinusoidal, d_position: 8}",
            "`d_position` 8 cannot be added to an embedding 24 wide; write `comb",
        ),
        ("POSITION", "{kind: learned, combine: append}", "`max_len` is needed"),
        ("input: body}", "input: body, share: tokens}", "input is 32 wide, .*`tokens` has d_model 24"),
        ("num_heads: 4", "num_heads: 3", "32.*num_heads 3|num_heads 3.*32"),
    ],
)
def test_widths_are_checked_along_the_edges(old, new, said, catalogue):
    text = SPEC.replace(old, new).replace("POSITION", APPENDED[0])
    with pytest.raises(SpecError, match=said):
        tfkit.graph_of(tfkit.parse_spec(text, catalogue))
