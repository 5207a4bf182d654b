"""A translator with two heads and three layers, for tests of products while decoding."""

from __future__ import annotations

import pytest

import tfkit

SPEC = """
tfkit: 1
name: small
defaults:
  d_model: 32
  vocab_size: 50
  pad_id: 0
  position: sinusoidal
  placement: post
  norm: layer_norm
  attention: {num_heads: 2}
  ffn: {d_ff: 64, activation: relu}
nodes:
  source:  {kind: tokens}
  target:  {kind: tokens, share: source, start_id: 1, end_id: 2}
  encoder: {kind: stack, input: source, num_layers: 1}
  decoder: {kind: stack, input: target, memory: encoder, num_layers: 2, causal: true}
  logits:  {kind: token_logits, input: decoder, share: source}
outputs: [logits]
"""
SOURCES = [[5, 6, 7, 2], [8, 9, 2], [4, 2], [11, 12, 13, 14, 15, 2], [20, 21, 2]]


def small() -> tfkit.Model:
    catalogue = tfkit.load_catalogue()
    return tfkit.build(tfkit.parse_spec(SPEC, catalogue), catalogue, seed=3).eval()


def finds_in_a_batch_as_alone(model: tfkit.Model) -> None:
    """A beam search finds in a batch what it finds for each source alone."""
    search = tfkit.Search(beams=3, extra_length=9)
    together = tfkit.generate_batched(model, SOURCES, search)
    for source, hypotheses in zip(SOURCES, together, strict=True):
        [alone] = tfkit.generate_batched(model, [source], search)
        assert alone[0].ids.tolist() == hypotheses[0].ids.tolist()
        assert alone[0].score == pytest.approx(hypotheses[0].score, rel=1e-5)
