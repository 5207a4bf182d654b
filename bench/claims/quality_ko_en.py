"""Korean-English translators by the length of the sentence: recurrent without attention, with it, and a Transformer."""

from __future__ import annotations

import argparse
import gzip
import re
from pathlib import Path

from quality_by_length import PAIRS, PAPERS, SPECS as LETTER_SPECS, VARIANTS as LETTER_VARIANTS, verdict
from reversal import RECIPE as LETTER_RECIPE, SPEC, main

from tfkit import Search, Translator
from tfkit.comparison import CandidateResult
from tfkit.metrics import corpus_scores

TEXT = "Without attention, translations of long sentences are worse than those of short ones"
VOCABULARY, FEATURES = 4000, 128
RECIPE = f"""\
tokeniser: {{kind: bpe, vocab_size: {VOCABULARY}}}
batching: {{tokens: 2048}}
loss: {{label_smoothing: 0.1}}
schedule: {{kind: inverse_sqrt, peak: 2.0e-3, warmup_steps: 300}}
average: 0.999
stopping: {{max_steps: 2700}}
validation: {{every_steps: 300}}
"""
VALIDATION, SCORED, WORDS = 200, 50, 10
VARIANTS = {**{name: LETTER_VARIANTS[name] for name in ("rnn", "rnn with attention", "transformer")}, **PAPERS}


def read(directory: Path, part: str) -> list[tuple[str, str]]:
    """Korean and English sentences of `train` or `test`."""
    packed = [(directory / f"{part}.{language}.gz").read_bytes() for language in ("ko", "en")]
    sides = [gzip.decompress(each).decode().splitlines() for each in packed]
    return list(zip(*sides, strict=True))


def enlarged(spec: str) -> str:
    """The spec of the letters with the vocabulary of the sentences and more features."""
    spec = spec.replace("vocab_size: 24", f"vocab_size: {VOCABULARY}").replace("d_ff: 128", f"d_ff: {4 * FEATURES}")
    return re.sub(r"(d_model|d_state): 64", rf"\1: {FEATURES}", spec)


def write_task(directory: Path, place: Path) -> Path:
    """Write the sentences, the spec and the recipe. Returns the recipe."""
    rows = read(directory, "train")
    for name, part in (("valid", rows[:VALIDATION]), ("train", rows[VALIDATION:])):
        for side, suffix in enumerate(("src", "trg")):
            (place / f"{name}.{suffix}").write_text("".join(f"{row[side]}\n" for row in part), encoding="utf-8")
    (place / "reversal.yaml").write_text(enlarged(SPEC), encoding="utf-8")
    recipe = place / "recipe.yaml"
    recipe.write_text(LETTER_RECIPE.partition("tokeniser:")[0] + RECIPE, encoding="utf-8")
    return recipe


def chrf_by_words(directory: Path, runs: CandidateResult, tiny: bool) -> dict[str, list[float]]:
    """chrF of test sentences in buckets of ten English words: one number per seed."""
    buckets: dict[int, list[tuple[str, str]]] = {}
    for row in read(directory, "test"):
        buckets.setdefault((len(row[1].split()) - 1) // WORDS, []).append(row)
    found: dict[str, list[float]] = {f"{at * WORDS + 1}-{at * WORDS + WORDS}": [] for at in sorted(buckets)}
    for seed in runs.runs:
        translator = Translator.load(runs.directory / f"seed-{seed}", Search(kind="greedy"))
        for name, at in zip(found, sorted(buckets), strict=True):
            rows = buckets[at][: 2 if tiny else SCORED]
            decoded = [each.text for each in translator.translate([row[0] for row in rows])]
            found[name].append(corpus_scores(decoded, [row[1] for row in rows])["chrf"].value)
    return found


SETTINGS = {
    "specs": {name: enlarged(spec) for name, spec in LETTER_SPECS.items()},
    "pairs": PAIRS[:1],
    "verdict": verdict,
}
if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=TEXT, add_help=False)
    parser.add_argument("--data", type=Path, required=True, metavar="DIRECTORY", help="train.ko.gz, train.en.gz, test.*.gz")
    options, rest = parser.parse_known_args()
    data = options.data
    main(
        TEXT, VARIANTS, rest, **SETTINGS, given=" --data DIRECTORY",
        write=lambda place: write_task(data, place), score=lambda runs, tiny: chrf_by_words(data, runs, tiny),
    )  # fmt: skip
