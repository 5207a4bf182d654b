"""Runs `verify` on mutants of small models. Each mutant must be killed, and unchanged models must pass.

The checkpoint does not count as a kill: it compares with a model that is built anew from the package, and a mistake in the
package would be in both.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tfkit import Catalogue, build, parse_spec
from tfkit_conformance.verification.row import VerifyReport
from tfkit_conformance.verification.verifier import PARTS, disturbed, verify

from .mutants import ModelMutant, Shape

SPECS: dict[Shape, str] = {
    "encoder-decoder": """
tfkit: 1
name: encoder-decoder
defaults:
  {d_model: 12, vocab_size: 23, pad_id: 0, dropout: 0.3, norm: layer_norm, position: sinusoidal, placement: post,
   attention: {num_heads: 2, dropout: 0.2, backend: eager}, ffn: {d_ff: 20, activation: relu, dropout: 0.1}}
nodes:
  source:  {kind: tokens, scale: sqrt_d_model}
  target:  {kind: tokens, share: source, scale: sqrt_d_model, start_id: 1, end_id: 2}
  encoder: {kind: stack, input: source, num_layers: 1}
  decoder: {kind: stack, input: target, memory: encoder, num_layers: 2, causal: true}
  logits:  {kind: token_logits, input: decoder, share: source}
outputs: [logits]
""",
    "decoder": """
tfkit: 1
name: decoder
defaults:
  {d_model: 12, vocab_size: 23, pad_id: 0, dropout: 0.1, norm: layer_norm, position: rotary_half, placement: pre,
   attention: {num_heads: 2, head_dim: 12, backend: eager}, ffn: {d_ff: 20, activation: swiglu}}
nodes:
  tokens: {kind: tokens}
  body:   {kind: stack, input: tokens, num_layers: 2, causal: true}
  logits: {kind: token_logits, input: body, share: tokens}
outputs: [logits]
""",
    "classifier": """
tfkit: 1
name: classifier
defaults:
  {d_model: 12, pad_id: 0, norm: layer_norm, position: sinusoidal, placement: pre,
   attention: {num_heads: 2, backend: eager}, ffn: {d_ff: 20, activation: gelu}}
nodes:
  tokens: {kind: tokens, vocab_size: 23}
  body:   {kind: stack, input: tokens, num_layers: 1}
  middle: {kind: dense, input: body, activation: tanh}
  one:    {kind: pool, input: middle, take: first}
  answer: {kind: classify, input: one, classes: 3}
outputs: [answer]
""",
    "recurrent": """
tfkit: 1
name: recurrent
defaults: {vocab_size: 23, d_model: 10, pad_id: 0}
nodes:
  source:  {kind: tokens}
  target:  {kind: tokens, start_id: 1, end_id: 2}
  encoder: {kind: rnn, input: source, cell: gru, d_state: 8, bidirectional: true}
  decoder:
    kind: rnn
    input: target
    memory: encoder
    cell: gru
    d_state: 8
    cross_attention: {attend: before_cell, score: {kind: additive, d_score: 6}}
    initial_state: {take: first_backward}
    readout: {kind: maxout, d_model: 9, state: previous}
  logits:  {kind: token_logits, input: decoder}
outputs: [logits]
""",
    "mixed": """
tfkit: 1
name: mixed
defaults:
  {d_model: 12, vocab_size: 23, pad_id: 0, norm: layer_norm, placement: pre,
   attention: {num_heads: 2, backend: eager}, ffn: {d_ff: 20, activation: gelu}}
nodes:
  tokens: {kind: tokens}
  left:   {kind: stack, input: tokens, num_layers: 1, position: alibi}
  right:  {kind: stack, input: left, num_layers: 2, final_norm: none,
           position: {kind: relative_t5, buckets: 8, max_distance: 16}}
  mix:    {kind: layer_mix, input: right.layers}
  answer: {kind: classify, input: mix, classes: 3}
outputs: [answer]
""",
}
LENGTHS: dict[str, dict[str, int]] = {
    "encoder-decoder": {"source": 9, "target": 8},
    "decoder": {"tokens": 9},
    "classifier": {"tokens": 9},
    "recurrent": {"source": 9, "target": 8},
    "mixed": {"tokens": 9},
}


def verify_mutant(
    shape: Shape,
    seed: int,
    mutant: ModelMutant | None,
    catalogue: Catalogue,
    dtypes: Sequence[str] = ("float32",),
    parts: Sequence[str] = PARTS,
    lengths: Mapping[str, int] | None = None,
) -> VerifyReport:
    """`verify` on a small model with a mutant, or without one; with the lengths that a user gets, unless some are given."""
    model = disturbed(build(parse_spec(SPECS[shape], catalogue), catalogue, seed=seed), seed)
    if mutant is not None:
        model = mutant.apply(model)
    return verify(model, dtypes=dtypes, lengths=lengths, seed=seed, parts=parts, catalogue=catalogue)


def killed_by(mutant: ModelMutant, seed: int, catalogue: Catalogue) -> str:
    """The first property that fails on a mutant, "" if none does. The checkpoint does not count."""
    rows = verify_mutant(mutant.shape, seed, mutant, catalogue).rows
    failed = (row.property for row in rows if row.status in ("failed", "inconclusive", "not run"))
    return next((name for name in failed if name != "checkpoint"), "")
