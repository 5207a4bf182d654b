"""What a corpus of some size asks for, where nobody said otherwise. Settings copied from a run on millions of sentences fail on
thousands: a vocabulary too large to learn, a warm-up that never ends."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass(frozen=True)
class Chosen:
    """What was chosen for a corpus, each with its reason in `reason`."""

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
    """The settings for a corpus of `rows` sentences."""
    for limit, vocab, tokens, accumulate, warmup, patience in SIZES:
        if rows <= limit:
            return Chosen(vocab, tokens, accumulate, warmup, patience, f"a corpus of {rows:,} rows, at most {limit:,}")
    return Chosen(*LARGEST, f"a corpus of {rows:,} rows, more than {SIZES[-1][0]:,}")


def recipe_text(name: str, spec: str, kind: str, rows: int) -> str:
    """A recipe for a spec and a corpus of that kind with `rows` rows, as YAML; the files are laid over it."""
    chosen = chosen_for(rows)
    return f"""\
tfkit: 1
name: {json.dumps(f"{name}, chosen for {chosen.reason}")}
model: {json.dumps(spec)}
data: {{kind: {kind}}}
tokeniser: {{kind: bpe, vocab_size: {chosen.vocab_size}}}
batching: {{tokens: {chosen.tokens}, accumulate: {chosen.accumulate}}}
schedule: {{kind: noam, warmup_steps: {chosen.warmup_steps}}}
average: 0.999
stopping: {{max_epochs: 100, patience: {chosen.patience}}}
"""
