"""Small random models, and what CTranslate2 makes of them."""

from __future__ import annotations

import copy
from pathlib import Path

import ctranslate2
import torch

import tfkit
from tfkit.interop import ctranslate2 as target

NODES = """
nodes:
  source:  {kind: tokens, scale: sqrt_d_model, end_id: 2}
  target:  {kind: tokens, share: source, scale: sqrt_d_model, start_id: 1, end_id: 2}
  encoder: {kind: stack, input: source, num_layers: 2}
  decoder: {kind: stack, input: target, memory: encoder, num_layers: 2, causal: true}
  logits:  {kind: token_logits, input: decoder, share: source}
outputs: [logits]
"""
LANGUAGE = """
nodes:
  tokens: {kind: tokens, start_id: 1, end_id: 2}
  body:   {kind: stack, input: tokens, num_layers: 2, causal: true}
  logits: {kind: token_logits, input: body, share: tokens}
outputs: [logits]
"""
ENCODER = """
nodes:
  tokens:  {kind: tokens, segments: 2, embedding_norm: layer_norm}
  encoder: {kind: stack, input: tokens, num_layers: 2}
  first:   {kind: pool, input: encoder, take: first}
  pooled:  {kind: dense, input: first, activation: tanh}
outputs: [encoder, pooled]
"""
DEFAULTS = """
tfkit: 1
name: small
defaults:
  d_model: 24
  vocab_size: 40
  pad_id: 0
  position: sinusoidal
  placement: post
  norm: layer_norm
  attention: {num_heads: 4}
  ffn: {d_ff: 28, activation: relu}
"""


def built(catalogue, nodes=NODES, changes=()):
    """A model whose weights, norms and biases are all random."""
    model = tfkit.build(tfkit.parse_spec(DEFAULTS + nodes, catalogue, list(changes)), catalogue, seed=0).eval()
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(torch.randn(parameter.shape, generator=generator) * (0.5 if parameter.dim() > 1 else 0.3))
    return model


def exported(model, directory: Path, texts=None, quantization="float32"):
    assert target.refusals(model) == []
    target.write(model, texts or {}, directory, quantization=quantization)
    return directory


def words(ids):
    """The tokens of ids of a model without a tokeniser."""
    return [f"<{number}>" for number in ids]


def numbers(tokens):
    return [int(token[1:-1]) for token in tokens]


def open_engine(kind, directory: Path, compute_type="float32"):
    return getattr(ctranslate2, kind)(str(directory), device="cpu", compute_type=compute_type, intra_threads=1)


def errors_of_log_probabilities(model, translator, source, target):
    """The largest errors of the log-probabilities of a target: the engine's, and tfkit's in float32."""

    start = model.plan.token_rule("target").start_id

    def scored(own):
        with torch.no_grad():
            logits = own(source=torch.tensor([[*source, 2]]), target=torch.tensor([[start, *target[:-1]]])).logits
        return logits.double().log_softmax(-1)[0, range(len(target)), target]

    exact = scored(copy.deepcopy(model).double())
    theirs = translator.score_batch([words(source)], [words(target)])[0].log_probs[: len(target)]
    return float((torch.tensor(theirs).double() - exact).abs().max()), float((scored(model) - exact).abs().max())
