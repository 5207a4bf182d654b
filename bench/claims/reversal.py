"""A task without grammar: letters to repeat backwards. Models of it are trained and compared over seeds by `tfkit compare`."""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from claim import versions
from rich.console import Console

from tfkit import Candidate, Comparison, compare_recipes
from tfkit.view.comparison import comparison_data, comparison_page, comparison_table, notes

LETTERS = "abcdefghijklmnop"
SPEC = """\
tfkit: 1
name: reversal
defaults: {d_model: 64, vocab_size: 24, pad_id: 0, dropout: 0.0, position: sinusoidal, placement: pre, norm: layer_norm,
  attention: {num_heads: 4}, ffn: {d_ff: 128, activation: relu}}
nodes:
  source:  {kind: tokens, scale: sqrt_d_model}
  target:  {kind: tokens, share: source, start_id: 1, end_id: 2, scale: sqrt_d_model}
  encoder: {kind: stack, input: source, num_layers: 2}
  decoder: {kind: stack, input: target, memory: encoder, num_layers: 2, causal: true}
  logits:  {kind: token_logits, input: decoder, share: source}
outputs: [logits]
"""
RECIPE = """\
tfkit: 1
name: reversal
model: reversal.yaml
data: {kind: parallel, source: train.src, target: train.trg, validation_source: valid.src, validation_target: valid.trg}
tokeniser: {kind: characters}
batching: {tokens: 512}
loss: {label_smoothing: 0.0}
schedule: {kind: inverse_sqrt, peak: 3.0e-3, warmup_steps: 50}
stopping: {max_steps: 400}
validation: {every_steps: 50}
"""


def pairs(count: int, lengths: Sequence[int], seed: int, task: str = "reverse") -> list[tuple[str, str]]:
    """Random letters, and the same letters backwards, or copied."""
    draw = random.Random(seed)
    sources = ["".join(draw.choices(LETTERS, k=draw.choice(lengths))) for _ in range(count)]
    return [(source, source[::-1] if task == "reverse" else source) for source in sources]


def write_task(folder: Path, lengths: Sequence[int] = range(2, 13), task: str = "reverse") -> Path:
    """Write training and validation text, the spec and the recipe. Returns the recipe."""
    for name, rows, seed in (("train", 4000, 0), ("valid", 200, 1)):
        made = pairs(rows, lengths, seed, task)
        for side, suffix in enumerate(("src", "trg")):
            (folder / f"{name}.{suffix}").write_text("".join(f"{each[side]}\n" for each in made), encoding="utf-8")
    (folder / "reversal.yaml").write_text(SPEC, encoding="utf-8")
    (folder / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    return folder / "recipe.yaml"


def main(text: str, variants: Mapping[str, Sequence[str]], arguments: list[str] | None = None) -> dict[str, Any]:
    """The command of a claim that trains: recipes that differ by overrides, compared with the first.

    Args:
        text: the claim.
        variants: overrides of the recipe, by name.
        arguments: the command line.
    """
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--tiny", action="store_true", help="four steps that only show that the command runs")
    parser.add_argument("--directory", type=Path, help="keep the runs here, and resume them")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path, help="an HTML page")
    options = parser.parse_args(arguments)
    short = ["stopping.max_steps=4", "validation.every_steps=4"] if options.tiny else []
    with TemporaryDirectory() as temporary:
        place = options.directory or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        recipe = str(write_task(place))
        given = [Candidate(recipe, (*changes, *short), name) for name, changes in variants.items()]
        found = compare_recipes(given, place / "runs", seeds=range(options.seeds))
        _print(text, found)
        if options.figure:
            options.figure.write_text(comparison_page(found, text), encoding="utf-8")
    shared = {"claim": text, "command": " ".join(["python", *sys.argv]), **versions(), "threads": 1}
    overrides = {name: list(changes) for name, changes in variants.items()}
    result = {**shared, "variants": overrides, **comparison_data(found)}
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


def _print(text: str, found: Comparison) -> None:
    console = Console(width=140)
    console.print(f"claim: {text}", markup=False)
    console.print(comparison_table(found))
    for sentence in notes(found):
        console.print(sentence, markup=False)
