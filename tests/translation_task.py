"""A task that a model of a few thousand weights learns in seconds: words of a made-up language, translated one by one."""

from __future__ import annotations

import random
from pathlib import Path

WORDS = {
    "one": "uno", "two": "duo", "red": "rubo", "blue": "bluo", "dog": "hundo", "cat": "kato",
    "runs": "kuras", "sees": "vidas", "big": "granda", "small": "eta", "house": "domo", "tree": "arbo",
    "the": "la", "old": "olda", "new": "nova", "sings": "kantas",
}  # fmt: skip
SPEC = """\
tfkit: 1
name: small
defaults:
  d_model: 16
  vocab_size: 50
  pad_id: 0
  dropout: 0.1
  position: sinusoidal
  placement: pre
  norm: layer_norm
  attention: {num_heads: 2}
  ffn: {d_ff: 32, activation: relu}
nodes:
  source: {kind: tokens, scale: sqrt_d_model}
  target: {kind: tokens, share: source, scale: sqrt_d_model}
  encoder: {kind: stack, input: source, num_layers: 1}
  decoder: {kind: stack, input: target, memory: encoder, num_layers: 1, causal: true}
  logits: {kind: token_logits, input: decoder, share: source}
outputs: [logits]
"""
RECIPE = """\
tfkit: 1
name: small
model: small.yaml
data: {kind: parallel, source: train.src, target: train.trg, held_out: 12}
tokeniser: {kind: bpe, vocab_size: 90, byte_fallback: false}
batching: {tokens: 128}
schedule: {kind: inverse_sqrt, peak: 1.0e-2, warmup_steps: 20}
average: 0.9
stopping: {max_steps: 24}
validation: {every_steps: 10}
keeping: {every_steps: 8, last: 2}
seed: 3
"""


def sentences(count: int, seed: int = 0) -> list[tuple[str, str]]:
    """Pairs of a sentence and its translation."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        words = draw.choices(sorted(WORDS), k=draw.randint(2, 7))
        made.append((" ".join(words), " ".join(WORDS[word] for word in words)))
    return made


def write_task(folder: Path, rows: int = 120) -> Path:
    """A recipe with its spec and its text in a folder; gives the path of the recipe."""
    pairs = sentences(rows)
    for name, side in (("train.src", 0), ("train.trg", 1)):
        (folder / name).write_text("".join(f"{pair[side]}\n" for pair in pairs), encoding="utf-8")
    (folder / "small.yaml").write_text(SPEC, encoding="utf-8")
    (folder / "small-recipe.yaml").write_text(RECIPE, encoding="utf-8")
    return folder / "small-recipe.yaml"
