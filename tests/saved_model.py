"""A small model to save, and what its directory holds."""

from __future__ import annotations

import json
from pathlib import Path

from tfkit.io import saving as store

FILES = {"spec.yaml", "model.safetensors", "plan.json", "versions.json"}


SPEC = """
tfkit: 1
name: small
defaults:
  d_model: 24
  vocab_size: 50
  pad_id: 0
  dropout: 0.1
  position: {kind: relative_t5, buckets: 8, max_distance: 9}
  placement: pre
  norm: rms_norm
  attention: {num_heads: 4, num_kv_heads: 2}
  ffn: {d_ff: 24, activation: swiglu}
nodes:
  source:  {kind: tokens, scale: sqrt_d_model}
  target:  {kind: tokens, share: source, start_id: 1, end_id: 2}
  encoder: {kind: stack, input: source, num_layers: 1}
  decoder: {kind: stack, input: target, memory: encoder, layers: [{repeat: 2, shared: true}, {}], causal: true}
  logits:  {kind: token_logits, input: decoder, share: source, bias: frozen}
outputs: [logits]
"""


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def rewrite(directory: Path, name: str, content: bytes) -> None:
    """Alter a file as someone would who also writes its new size and digest."""
    (directory / name).write_bytes(content)
    versions = json.loads((directory / "versions.json").read_text())
    versions["files"][name] = store.file_record(directory / name)
    (directory / "versions.json").write_text(json.dumps(versions))
