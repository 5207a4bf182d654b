"""Small models that decode."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest
import torch

import tfkit
from tfkit import Model

TRANSLATOR = """
tfkit: 1
name: small
defaults:
  d_model: 16
  vocab_size: 11
  pad_id: 0
  position: {position}
  placement: pre
  norm: layer_norm
  attention: {{num_heads: 2}}
  ffn: {{d_ff: 24, activation: relu}}
nodes:
  source:  {{kind: tokens}}
  target:  {{kind: tokens, share: source, start_id: {start}, end_id: 2}}
  encoder: {{kind: stack, input: source, num_layers: 1}}
  decoder: {{kind: stack, input: target, memory: encoder, num_layers: 2, causal: true}}
  logits:  {{kind: token_logits, input: decoder, share: source}}
outputs: [logits]
"""
WRITER = """
tfkit: 1
name: writer
defaults:
  d_model: 16
  position: {position}
  placement: pre
  norm: layer_norm
  attention: {{num_heads: 2}}
  ffn: {{d_ff: 24, activation: relu}}
nodes:
  tokens: {{kind: tokens, vocab_size: 11, pad_id: 0, start_id: {start}, end_id: 2}}
  body:   {{kind: stack, input: tokens, num_layers: 2, causal: true}}
  logits: {{kind: token_logits, input: body, share: tokens}}
outputs: [logits]
"""


@pytest.fixture(scope="session")
def catalogue() -> tfkit.Catalogue:
    return tfkit.load_catalogue()


@pytest.fixture
def decoder_of(catalogue: tfkit.Catalogue) -> Callable[..., Model]:
    """Random weights large enough that greedy decoding wanders about and now and then meets the end token."""
    return _maker(catalogue)


@pytest.fixture(scope="session")
def any_decoder(catalogue: tfkit.Catalogue) -> Callable[..., Model]:
    """`any_decoder(kind, position, seed)`: each made once, for tests that draw many."""
    make = _maker(catalogue)
    return cache(lambda kind, position, seed: make(kind, position=position, seed=seed))


def _maker(catalogue: tfkit.Catalogue) -> Callable[..., Model]:
    def make(kind: str, *overrides: str, position: str = "rotary_half", start: int = 1, seed: int = 1) -> Model:
        text = {"translator": TRANSLATOR, "writer": WRITER}[kind].format(position=position, start=start)
        model = tfkit.build(tfkit.parse_spec(text, catalogue, overrides), catalogue, dtype=torch.float64)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64) * 0.7)
        return model.eval()

    return make
