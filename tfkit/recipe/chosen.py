"""Default settings by the size of the corpus. Settings for millions of sentences fail with thousands: the vocabulary is too
large to learn, and training stops before the warm-up ends."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Chosen:
    """The settings for a corpus, and the reason for them."""

    vocab_size: int
    tokens: int
    accumulate: int
    warmup_steps: int
    patience: int
    reason: str


SIZES = (
    # up to rows, vocabulary, tokens of a batch, batches of a step, warm-up, patience in validations
    (2_000, 1_000, 1_024, 1, 400, 10),
    (20_000, 4_000, 2_048, 1, 600, 10),
    (100_000, 6_000, 2_048, 1, 1_000, 10),
    (1_000_000, 16_000, 4_096, 2, 4_000, 8),
)
LARGEST = (32_000, 4_096, 6, 4_000, 5)


def chosen_for(rows: int) -> Chosen:
    """The settings for a corpus of `rows` rows."""
    for limit, vocab, tokens, accumulate, warmup, patience in SIZES:
        if rows <= limit:
            return Chosen(vocab, tokens, accumulate, warmup, patience, f"a corpus of {rows:,} rows, at most {limit:,}")
    return Chosen(*LARGEST, f"a corpus of {rows:,} rows, more than {SIZES[-1][0]:,}")


def recipe_text(name: str, spec: str, kind: str, rows: int) -> str:
    """A recipe as YAML, for a spec and a corpus of this kind and size. Overrides add the files."""
    chosen = chosen_for(rows)
    return f"""\
tfkit: 1
name: {json.dumps(f"{name}, chosen for {chosen.reason}", allow_nan=False)}
model: {json.dumps(spec, allow_nan=False)}
data: {{kind: {kind}}}
tokeniser: {{kind: bpe, vocab_size: {chosen.vocab_size}}}
batching: {{tokens: {chosen.tokens}, accumulate: {chosen.accumulate}}}
schedule: {{kind: noam, warmup_steps: {chosen.warmup_steps}}}
average: 0.999
stopping: {{max_epochs: 100, patience: {chosen.patience}}}
"""
