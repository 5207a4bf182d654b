"""A translator with two heads and three layers, whose precision is chosen when it is loaded."""

from __future__ import annotations

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
