"""Small models for the tests of the blocks: one text, varied by position scheme, placement and overrides."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from typing import Any

import pytest
import torch

import tfkit
from fixtures import rounding, seeded  # noqa: F401
from shape_checks import shapes_checked
from tfkit import Model

DEFAULTS = """
tfkit: 1
name: small
defaults:
  d_model: 24
  vocab_size: 19
  pad_id: 0
  position: {position}
  placement: {placement}
  norm: layer_norm
  attention: {{num_heads: 6}}
  ffn: {{d_ff: 20, activation: {activation}}}
"""
ENCODER_DECODER = """
nodes:
  source:  {kind: tokens, scale: sqrt_d_model, end_id: 2}
  target:  {kind: tokens, share: source, start_id: 1, end_id: 2}
  encoder: {kind: stack, input: source, num_layers: 2}
  decoder: {kind: stack, input: target, memory: encoder, num_layers: 2, causal: true}
  logits:  {kind: token_logits, input: decoder, share: source}
outputs: [logits]
"""
DECODER_ONLY = """
nodes:
  tokens: {kind: tokens, start_id: 1, end_id: 2}
  body:   {kind: stack, input: tokens, num_layers: 3, causal: true}
  logits: {kind: token_logits, input: body, share: tokens}
outputs: [logits]
"""
SHAPES = {"encoder-decoder": ENCODER_DECODER, "decoder": DECODER_ONLY}


UNCHECKED = {"test_compile", "test_dispatch", "test_call_errors"}
"""Tests of what Dynamo traces, and of inputs whose shapes are wrong."""


@pytest.fixture(autouse=True)
def _shapes_checked(request: pytest.FixtureRequest) -> Iterator[None]:
    unchecked = request.module.__name__.rpartition(".")[2] in UNCHECKED or "compile" in request.node.name
    with nullcontext() if unchecked else shapes_checked():
        yield


@pytest.fixture
def spec_of(catalogue: tfkit.Catalogue) -> Callable[..., tfkit.ModelSpec]:
    def make(
        shape: str = "encoder-decoder",
        *overrides: str,
        position: str = "sinusoidal",
        placement: str = "pre",
        activation: str = "gelu",
    ) -> tfkit.ModelSpec:
        text = DEFAULTS.format(position=position, placement=placement, activation=activation) + SHAPES.get(shape, shape)
        return tfkit.parse_spec(text, catalogue, overrides)

    return make


@pytest.fixture
def model_of(spec_of: Callable[..., tfkit.ModelSpec], catalogue: tfkit.Catalogue) -> Callable[..., Model]:
    """A model in evaluation mode whose every parameter, biases and norms too, is away from its initial value, so that leaving
    one out shows."""

    def make(*arguments: str, dtype: torch.dtype = torch.float32, backend: Any = None, **words: str) -> Model:
        model = tfkit.build(spec_of(*arguments, **words), catalogue, dtype=dtype, backend=backend)
        generator = torch.Generator().manual_seed(7)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter += (0.2 * torch.randn(parameter.shape, generator=generator)).to(dtype)
        return model.eval()

    return make


@pytest.fixture
def ids_of() -> Callable[..., torch.Tensor]:
    """Random ids (B, L) that are neither padding, start nor end."""

    def make(batch: int, length: int, seed: int = 0) -> torch.Tensor:
        return torch.randint(3, 19, (batch, length), generator=torch.Generator().manual_seed(seed))

    return make
