"""A task without grammar: letters to write backwards. Models of it are trained and compared over seeds by `tfkit compare`."""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from tempfile import TemporaryDirectory
from types import MappingProxyType
from typing import Any

from claim import evaluated_again, versions
from rich.console import Console
from rich.table import Table

from tfkit import Candidate, Comparison, Search, Translator, compare_recipes
from tfkit.comparison import CandidateResult
from tfkit.comparison.results import Difference, paired_difference
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
Result = Mapping[str, Any]
"""What a claim stores: `recipes` with scores by seed, and `accuracy_by_length`, recipe -> lengths -> one number per seed."""


@dataclass(frozen=True)
class Pair:
    """Two recipes of which the claim says that one is better. They differ in one setting; a test looks.

    Attributes:
        better: The recipe that the claim prefers.
        other: The recipe that it is compared with.
        setting: The key of the recipe or of the spec that holds all differences; `norm` is also `final_norm`.
        says: What the claim says, between the two names.
        for_equal_parameters: A second key that changes with it, so that the models have equally many parameters.
    """

    better: str
    other: str
    setting: str
    says: str = "is better than"
    for_equal_parameters: str = ""


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


def pairs(count: int, lengths: Sequence[int], seed: int) -> list[tuple[str, str]]:
    """Random letters, and the same letters backwards."""
    draw = random.Random(seed)
    sources = ["".join(draw.choices(LETTERS, k=draw.choice(lengths))) for _ in range(count)]
    return [(source, source[::-1]) for source in sources]


def write_task(folder: Path, lengths: Sequence[int] = range(2, 13)) -> Path:
    """Write training and validation text, the spec and the recipe. Returns the recipe."""
    for name, rows, seed in (("train", 4000, 0), ("valid", 200, 1)):
        made = pairs(rows, lengths, seed)
        for side, suffix in enumerate(("src", "trg")):
            (folder / f"{name}.{suffix}").write_text("".join(f"{each[side]}\n" for each in made), encoding="utf-8")
    (folder / "reversal.yaml").write_text(SPEC, encoding="utf-8")
    (folder / "recipe.yaml").write_text(RECIPE, encoding="utf-8")
    return folder / "recipe.yaml"


def scores(result: Result, name: str) -> dict[str, float]:
    """The validation scores of a recipe by seed."""
    [recipe] = [each for each in result["recipes"] if each["name"] == name]
    return {seed: score for seed, score in recipe["scores"].items() if score is not None}


def written(difference: Difference) -> str:
    if difference.seeds < 2:
        return f"{difference.mean:+.3g} (one seed, which has no spread)"
    return f"{difference.mean:+.3g} (95 % interval {difference.low:+.3g} to {difference.high:+.3g}, {difference.seeds} seeds)"


def verdict_of_pairs(result: Result, pairs: Sequence[Pair]) -> str:
    """What the scores say of each pair. `Not seen` is a difference whose interval holds 0."""
    sentences = []
    for pair in pairs:
        difference = paired_difference(scores(result, pair.better), scores(result, pair.other))
        sign = -difference.sign if result["metric"] == "loss" else difference.sign
        word = {1: "the data agree", -1: "the data say the opposite"}.get(sign, "not seen")
        if difference.seeds < 2:
            word = "open"
        elif not sign and pair.says == "is no worse than":
            word = "no difference is seen"
        sentences.append(f"{pair.better} {pair.says} {pair.other}: {word}, {result['metric']} {written(difference)}.")
    return " ".join(sentences)


def candidates(
    place: Path,
    variants: Mapping[str, Sequence[str]],
    overrides: Sequence[str] = (),
    lengths: Sequence[int] = range(2, 13),
    specs: Mapping[str, str] = MappingProxyType({}),
    write: Callable[[Path], Path] | None = None,
) -> list[Candidate]:
    """Write the task and the specs into a directory; the recipes that differ by overrides. Specs have no directory there."""
    recipe = str(write(place) if write else write_task(place, lengths))
    for name, spec in specs.items():
        (place / name).write_text(spec, encoding="utf-8")
    placed = {f"model={name}": f"model={place / name}" for name in specs}
    return [
        Candidate(recipe, (*(placed.get(each, each) for each in changes), *overrides), name)
        for name, changes in variants.items()
    ]


def main(
    text: str,
    variants: Mapping[str, Sequence[str]],
    arguments: list[str] | None = None,
    *,
    lengths: Sequence[int] = range(2, 13),
    buckets: Sequence[Sequence[int]] = (),
    specs: Mapping[str, str] = MappingProxyType({}),
    write: Callable[[Path], Path] | None = None,
    score: Callable[[CandidateResult, bool], dict[str, list[float]]] | None = None,
    given: str = "",
    pairs: Sequence[Pair] = (),
    verdict: Callable[[Result], str] | None = None,
) -> dict[str, Any]:
    """The command of a claim that trains: recipes that differ by overrides, compared with the first.

    Args:
        text: the claim.
        variants: overrides of the recipe, by name.
        arguments: the command line.
        lengths: the lengths of training and validation text.
        buckets: lengths of other text, for each of which the share of letters that are right is measured.
        specs: further specs, by file name.
        write: writes another task into a directory and returns its recipe.
        score: measures a recipe by length: one number per seed. By default the share of right letters.
        given: what the command line has before the options.
        pairs: the recipes of which the claim says something.
        verdict: whether the data agree, from what is stored. By default what the scores say of the pairs.
    """
    parser = argparse.ArgumentParser(description=text)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--stored", type=Path, metavar="JSON", help="evaluate a stored result again; nothing is trained")
    parser.add_argument("--workers", type=int, help="runs at once; default: as many as there are cores")
    parser.add_argument("--tiny", action="store_true", help="four steps that only show that the command runs")
    parser.add_argument("--directory", type=Path, help="keep the runs here, and resume them")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path, help="a page (.html) or a picture (.svg, .png)")
    options = parser.parse_args(arguments)
    evaluate = verdict or (lambda result: verdict_of_pairs(result, pairs))
    if options.stored:
        return evaluated_again(options.stored, text, evaluate)
    short = ["stopping.max_steps=4", "validation.every_steps=4"] if options.tiny else []
    with TemporaryDirectory() as temporary:
        place = options.directory or Path(temporary)
        place.mkdir(parents=True, exist_ok=True)
        compared = candidates(place, variants, short, lengths, specs, write)
        found = compare_recipes(compared, place / "runs", seeds=range(options.seeds), workers=options.workers)
        by_length = {
            each.name: score(each, options.tiny) if score else accuracy_by_length(each, buckets, 5 if options.tiny else 100)
            for each in found.candidates
            if score or buckets
        }
        _print(text, found, by_length, "chrF" if score else "right letters, per cent,")
        if options.figure and options.figure.suffix == ".html":
            options.figure.write_text(comparison_page(found, text), encoding="utf-8")
    shared = {
        "claim": text,
        "command": f"python bench/claims/{Path(sys.argv[0]).name}{given} --seeds {options.seeds}",
        **versions(),
        "threads": 1,
    }
    overrides = {name: list(changes) for name, changes in variants.items()}
    result = {**shared, "verdict": "", "variants": overrides, **comparison_data(found), "accuracy_by_length": by_length}
    result["verdict"] = evaluate(result)
    print(f"verdict: {result['verdict']}")
    if by_length:
        result["measure_by_length"] = "chrF, higher is better" if score else "letters right, per cent"
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    if options.figure and options.figure.suffix != ".html":
        from picture import draw

        draw(result, options.figure)
    return result


def accuracy_by_length(runs: CandidateResult, buckets: Sequence[Sequence[int]], rows: int) -> dict[str, list[float]]:
    """The share of letters at their right place, in per cent, for each bucket of lengths: one number per seed."""
    found: dict[str, list[float]] = {_bucket(lengths): [] for lengths in buckets}
    for seed in runs.runs:
        translator = Translator.load(runs.directory / f"seed-{seed}", Search(kind="greedy"))
        for lengths in buckets:
            made = pairs(rows, lengths, seed=2)
            decoded = translator.translate([source for source, _ in made])
            right = sum(
                a == b for each, (_, target) in zip(decoded, made, strict=True) for a, b in zip(each.text, target, strict=False)
            )
            found[_bucket(lengths)].append(100 * right / sum(len(target) for _, target in made))
    return found


def _bucket(lengths: Sequence[int]) -> str:
    return f"{min(lengths)}-{max(lengths)}"


def _print(text: str, found: Comparison, by_length: Mapping[str, Mapping[str, list[float]]], measured: str) -> None:
    console = Console(width=140)
    console.print(f"claim: {text}", markup=False)
    console.print(comparison_table(found))
    for sentence in notes(found):
        console.print(sentence, markup=False)
    if by_length:
        table = Table("", *next(iter(by_length.values())), title=f"{measured} by length: mean, lowest to highest seed")
        for name, values in by_length.items():
            table.add_row(
                name, *(f"{fmean(each):.1f} ({min(each):.1f} to {max(each):.1f})" if each else "-" for each in values.values())
            )
        console.print(table)
