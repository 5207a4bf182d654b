"""Recurrent translators by the length of the text, without attention and with it: on letters, and from Korean to English."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path
from statistics import fmean

from ..comparison import CandidateResult
from ..errors import Diagnostic, InputError
from .claim import Data, Request
from .letters import FILES, SECONDS, SPEC, on_letters, write_rows
from .trained import Lengths, Pair, Trained

RECURRENT = """\
tfkit: 1
name: recurrent
defaults: {vocab_size: 24, d_model: 64, pad_id: 0}
nodes:
  source:  {kind: tokens}
  target:  {kind: tokens, start_id: 1, end_id: 2}
  encoder: {kind: rnn, input: source, cell: gru, d_state: 64}
  decoder: {kind: rnn, input: target, memory: encoder, cell: gru, d_state: 64, initial_state: {take: last},
    readout: {kind: tanh, d_model: 64}}
  logits:  {kind: token_logits, input: decoder, share: target}
outputs: [logits]
"""
CHO = RECURRENT.replace("  decoder:", "  context: {kind: pool, input: encoder, take: last}\n  decoder:").replace(
    "memory: encoder", "memory: context"
)
BAHDANAU = RECURRENT.replace("cell: gru, d_state: 64}", "cell: gru, d_state: 64, bidirectional: true}").replace(
    "{take: last}", "{take: first_backward}, cross_attention: {attend: before_cell, score: additive}"
)
SPECS = {"recurrent.yaml": RECURRENT, "cho.yaml": CHO, "bahdanau.yaml": BAHDANAU}
PLAIN = ["model=recurrent.yaml"]
ATTENTION = "model.decoder.cross_attention={attend: before_cell, score: additive}"
BOTH_WAYS = "model.encoder.bidirectional=true"
FOUR = {
    "rnn": PLAIN,
    "rnn with attention": [*PLAIN, ATTENTION],
    "both ways": [*PLAIN, BOTH_WAYS],
    "both ways with attention": [*PLAIN, BOTH_WAYS, ATTENTION],
}
PAPERS = {"vector in every step": ["model=cho.yaml"], "rnnsearch": ["model=bahdanau.yaml"]}
"""The models of Cho et al. and of Bahdanau et al. differ in more than one setting, and are in no pair."""
WITH_PAPERS = {"rnn": FOUR["rnn"], "rnn with attention": FOUR["rnn with attention"], **PAPERS, "transformer": list[str]()}

PAIRS = [
    Pair("rnn with attention", "rnn", "cross_attention"),
    Pair("both ways with attention", "both ways", "cross_attention"),
    Pair("both ways", "rnn", "bidirectional"),
    Pair("both ways with attention", "rnn with attention", "bidirectional"),
]


def verdict(data: Data, pairs: Sequence[Pair]) -> str:
    """The data agree if with every seed attention alone makes the longest text better, and keeps a larger share of the quality
    on the shortest. The other pairs say what reading both ways adds. One seed leaves it open."""
    by_length, sentences = data["by_length"], []
    for pair in pairs:
        ends = [list(by_length[name].values()) for name in (pair.other, pair.better)]
        seeds = list(zip(ends[0][0], ends[0][-1], ends[1][0], ends[1][-1], strict=False))
        longest = sum(better > other for _, other, _, better in seeds)
        keeps = sum(better * start > other * begin for start, other, begin, better in seeds)
        word = "the data agree" if longest == keeps == len(seeds) else "not seen at this size"
        word = "open, one seed has no spread" if len(seeds) < 2 else word
        claim = f": {word}" if pair.setting == "cross_attention" else ""
        sentences.append(
            f"{pair.better} against {pair.other}{claim}; better on the longest text with {longest} of {len(seeds)} seeds,"
            f" keeps a larger share of its quality on the shortest with {keeps}."
        )
    if not sentences:
        sentences.append("No two of these recipes differ in attention alone, so they say nothing of the claim.")
    means = []
    for name, buckets in by_length.items():
        first, *_, last = buckets
        means.append(f"{name} {fmean(buckets[first]):.1f} at {first}, {fmean(buckets[last]):.1f} at {last}")
    losses = ", ".join(f"{name} {fmean(scores.values()):.2f}" for name, scores in data["scores"].items())
    return f"{' '.join(sentences)} Mean by length: {'; '.join(means)}. Validation loss: {losses}."


QUALITY_BY_LENGTH = on_letters(
    "One context vector forgets long text, attention does not",
    "Recurrent translators by the length of the text, without attention and with it, read one way and both; and a Transformer.",
    {**FOUR, "transformer": []},
    PAIRS,
    verdict,
    lengths=range(2, 25),
    buckets=[range(2, 7), range(7, 13), range(13, 19), range(19, 25)],
    specs=SPECS,
    seconds=2 * SECONDS,
)

LONGER = ["batching.tokens=1024", "stopping.max_steps=800", "validation.every_steps=200"]
QUALITY_TO_100_LETTERS = on_letters(
    "One context vector forgets text of up to 100 letters, attention does not",
    "Translators on texts of up to 100 letters to write backwards: recurrent without attention, with it, and a Transformer.",
    {name: [*changes, *LONGER] for name, changes in WITH_PAPERS.items()},
    PAIRS[:1],
    verdict,
    lengths=range(2, 101),
    buckets=[range(2, 21), *(range(low, low + 20) for low in (21, 41, 61, 81))],
    specs=SPECS,
    seconds=12 * SECONDS,
)

VOCABULARY, FEATURES = 4000, 128
KO_EN_RECIPE = f"""\
{FILES}tokeniser: {{kind: bpe, vocab_size: {VOCABULARY}}}
batching: {{tokens: 2048}}
loss: {{label_smoothing: 0.1}}
schedule: {{kind: inverse_sqrt, peak: 2.0e-3, warmup_steps: 300}}
average: 0.999
stopping: {{max_steps: 2700}}
validation: {{every_steps: 300}}
"""
VALIDATION, SCORED, WORDS, MOST_ROWS = 200, 50, 10, 100_000


def sentences_of(request: Request, part: str) -> list[tuple[str, ...]]:
    """Korean and English sentences of `train` or `test`, at most `MOST_ROWS`; those without text are left out."""
    from ..data.text_lines import rows

    assert request.text is not None
    read = islice(rows(request.text / f"{part}.ko.gz", request.text / f"{part}.en.gz"), MOST_ROWS)
    return [row for row in read if all(side.strip() for side in row)]


def scored_buckets(request: Request) -> dict[str, list[tuple[str, ...]]]:
    """The test sentences by their English words. Raises InputError if all are of one length."""
    buckets: dict[int, list[tuple[str, ...]]] = {}
    for row in sentences_of(request, "test"):
        buckets.setdefault((len(row[1].split()) - 1) // WORDS, []).append(row)
    if len(buckets) < 2:
        message = (
            f"{request.text}/test.en.gz has no sentences of different lengths: one of up to {WORDS} words, and a longer one"
        )
        raise InputError(Diagnostic("TFK103", message, "the claim compares short sentences with long ones: add some"))
    return {f"{at * WORDS + 1}-{at * WORDS + WORDS}": buckets[at] for at in sorted(buckets)}


def enlarged(spec: str) -> str:
    """The spec of the letters with the vocabulary of the sentences and more features."""
    spec = spec.replace("vocab_size: 24", f"vocab_size: {VOCABULARY}").replace("d_ff: 128", f"d_ff: {4 * FEATURES}")
    return re.sub(r"(d_model|d_state): 64", rf"\1: {FEATURES}", spec)


def write_sentences(place: Path, request: Request) -> Path:
    """Write the sentences, the specs and the recipe. Returns the recipe."""
    scored_buckets(request)
    train = sentences_of(request, "train")
    if len(train) <= VALIDATION:
        message = f"{request.text}/train.ko.gz has {len(train)} sentences, and {VALIDATION} of them are for validation"
        raise InputError(Diagnostic("TFK103", message, "add sentences"))
    write_rows(place, "valid", train[:VALIDATION])
    write_rows(place, "train", train[VALIDATION:])
    for name, text in {"reversal.yaml": SPEC, **SPECS}.items():
        (place / name).write_text(enlarged(text), encoding="utf-8")
    (place / "recipe.yaml").write_text(KO_EN_RECIPE, encoding="utf-8")
    return place / "recipe.yaml"


def chrf_by_words(runs: CandidateResult, request: Request) -> dict[str, list[float]]:
    """chrF of test sentences in buckets of ten English words: one number per seed."""
    from ..generate import Search
    from ..metrics import corpus_scores
    from ..text import Translator

    buckets = scored_buckets(request)
    scores: dict[str, list[float]] = {name: [] for name in buckets}
    for seed in runs.runs:
        translator = Translator.load(runs.directory / f"seed-{seed}", Search(kind="greedy"))
        for name, rows in buckets.items():
            rows = rows[: 2 if request.tiny else SCORED]
            decoded = [line.text for line in translator.translate([row[0] for row in rows])]
            scores[name].append(corpus_scores(decoded, [row[1] for row in rows])["chrf"].value)
    return scores


QUALITY_KO_EN = Trained(
    "Without attention, translations of long sentences are worse than those of short ones",
    "Korean-English translators by the length of the sentence: recurrent without attention, with it, and a Transformer.",
    WITH_PAPERS,
    PAIRS[:1],
    write_sentences,
    600,
    tuple(SPECS),
    verdict,
    Lengths("chrF of translations", "words", chrf_by_words),
    text=True,
)
