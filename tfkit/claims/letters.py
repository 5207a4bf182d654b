"""Claims on a task without grammar: letters to write backwards. A Transformer of 2 + 2 layers and 64 features learns it."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from statistics import fmean

from ..comparison import CandidateResult
from ..comparison.results import paired_difference
from .claim import Data, Request
from .trained import Lengths, Pair, Trained, compared, verdict_of_pairs, written

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
FILES = """\
tfkit: 1
name: reversal
model: reversal.yaml
data: {kind: parallel, source: train.src, target: train.trg, validation_source: valid.src, validation_target: valid.trg}
"""
RECIPE = f"""\
{FILES}tokeniser: {{kind: characters}}
batching: {{tokens: 512}}
loss: {{label_smoothing: 0.0}}
schedule: {{kind: inverse_sqrt, peak: 3.0e-3, warmup_steps: 50}}
stopping: {{max_steps: 400}}
validation: {{every_steps: 50}}
"""
SECONDS = 15
"""Processor time of a run with this recipe."""
RANDOM = 100 / len(LETTERS)
"""Letters that a guess has right, in per cent."""


def letter_pairs(count: int, lengths: Sequence[int], seed: int) -> list[tuple[str, str]]:
    """Random letters, and the same letters backwards."""
    draw = random.Random(seed)
    sources = ["".join(draw.choices(LETTERS, k=draw.choice(lengths))) for _ in range(count)]
    return [(source, source[::-1]) for source in sources]


def write_rows(place: Path, name: str, rows: Sequence[Sequence[str]]) -> None:
    """Write sources and targets as `name.src` and `name.trg`."""
    for side, suffix in enumerate(("src", "trg")):
        (place / f"{name}.{suffix}").write_text("".join(f"{row[side]}\n" for row in rows), encoding="utf-8")


def write_task(place: Path, request: Request, lengths: Sequence[int], specs: Mapping[str, str]) -> Path:
    """Write training and validation text, the specs and the recipe. Returns the recipe."""
    for name, count, seed in (("train", 4000, 0), ("valid", 200, 1)):
        write_rows(place, name, letter_pairs(count, lengths, seed))
    for name, text in {"reversal.yaml": SPEC, **specs, "recipe.yaml": RECIPE}.items():
        (place / name).write_text(text, encoding="utf-8")
    return place / "recipe.yaml"


def bucket(lengths: Sequence[int]) -> str:
    """The name of a range of lengths."""
    return f"{min(lengths)}-{max(lengths)}"


def letters_right(runs: CandidateResult, request: Request, buckets: Sequence[Sequence[int]]) -> dict[str, list[float]]:
    """The share of letters at their right place, in per cent, for each bucket of lengths: one number per seed."""
    from ..generate import Search
    from ..text import Translator

    shares: dict[str, list[float]] = {bucket(lengths): [] for lengths in buckets}
    for seed in runs.runs:
        translator = Translator.load(runs.directory / f"seed-{seed}", Search(kind="greedy"))
        for lengths in buckets:
            rows = letter_pairs(5 if request.tiny else 100, lengths, seed=2)
            decoded = translator.translate([source for source, _ in rows])
            right = sum(
                a == b for line, (_, target) in zip(decoded, rows, strict=True) for a, b in zip(line.text, target, strict=False)
            )
            shares[bucket(lengths)].append(100 * right / sum(len(target) for _, target in rows))
    return shares


def on_letters(
    sentence: str,
    about: str,
    variants: Mapping[str, Sequence[str]],
    pairs: Sequence[Pair],
    evaluate: Callable[[Data, Sequence[Pair]], str] = verdict_of_pairs,
    *,
    lengths: Sequence[int] = range(2, 13),
    buckets: Sequence[Sequence[int]] = (),
    specs: Mapping[str, str] | None = None,
    seconds: float = SECONDS,
) -> Trained:
    """A claim on letters of these lengths to write backwards."""
    by_length = Lengths("letters right, per cent", "letters", partial(letters_right, buckets=buckets)) if buckets else None
    write = partial(write_task, lengths=lengths, specs=specs or {})
    return Trained(sentence, about, variants, pairs, write, seconds, [*(specs or ())], evaluate, by_length)


def _stacks(before: str, after: str = "") -> list[str]:
    """Two layers without feed-forward sub-layers: these before cross-attention, and behind it."""
    return [
        "model.defaults.ffn=null",
        f"model.encoder={{layers: [{{repeat: 2, sublayers: [{before}{after}]}}]}}",
        f"model.decoder={{layers: [{{repeat: 2, sublayers: [{before}, cross_attention{after}]}}]}}",
    ]


WITHOUT = {
    "no feed-forward layer": ("sublayers", _stacks("self_attention")),
    "attention for feed-forward": ("sublayers", _stacks("self_attention", ", self_attention")),
    "no residual": ("residual", ["model.defaults.placement={kind: pre, residual: false}"]),
    "no norm": ("norm", ["model.defaults.norm=none"]),
    "no scale of scores": ("scale", ["model.defaults.attention.scale=1.0"]),
    "no positions": ("position", ["model.defaults.position=none"]),
    "one matrix for keys and values": ("shared_projection", ["model.defaults.attention.shared_projection=key_value"]),
    "one for queries too": ("shared_projection", ["model.defaults.attention.shared_projection=query_key_value"]),
    "one head": ("num_heads", ["model.defaults.attention.num_heads=1"]),
    "two heads": ("num_heads", ["model.defaults.attention.num_heads=2"]),
    "eight heads": ("num_heads", ["model.defaults.attention.num_heads=8"]),
}
"""What is left out or changed, with the setting that holds all differences and the overrides."""
ABLATIONS = on_letters(
    "A Transformer needs each of its parts",
    "A Transformer without one of its parts: feed-forward layers (with fewer parameters, and with attention in their place),"
    " residuals, norms, the scale of scores, positions, a matrix each for queries, keys and values; and with other numbers"
    " of heads than its four.",
    {"whole": [], **{name: changes for name, (_, changes) in WITHOUT.items()}},
    [Pair("whole", name, setting) for name, (setting, _) in WITHOUT.items()],
)

FFN = "model.defaults.ffn={{d_ff: {}, activation: {}, bias: false}}"
ACTIVATIONS = on_letters(
    "SwiGLU is better than GELU, and GELU than ReLU, at equal parameters",
    "ReLU, GELU and SwiGLU with equal parameters: the three matrices of SwiGLU have two thirds of the width"
    " (arXiv:2002.05202).",
    {name: [FFN.format(width, name)] for name, width in {"relu": 126, "gelu": 126, "swiglu": 84}.items()},
    [Pair("swiglu", "gelu", "activation", for_equal_parameters="d_ff"), Pair("gelu", "relu", "activation")],
)

EMBEDDING_SCALE = on_letters(
    "Embeddings need the factor sqrt(d_model)",
    "Token embeddings multiplied by sqrt(d_model), and not (arXiv:1706.03762, section 3.4).",
    {"scaled": [], "not scaled": ["model.source.scale=1.0", "model.target.scale=1.0"]},
    [Pair("scaled", "not scaled", "scale")],
)

POSITION_COMBINE = on_letters(
    "Adding positions to the embedding is no worse than concatenating them",
    "Positions added to the embedding, or concatenated with it and projected back (arXiv:1706.03762, section 3.5).",
    {"add": [], "concat": ["model.defaults.position={kind: sinusoidal, combine: concat}"]},
    [Pair("add", "concat", "position", "is no worse than")],
)

METRIC = ["validation.metric=chrf", "validation.sentences=100"]
SCHEDULED_SAMPLING = on_letters(
    "Scheduled sampling gives better decoded text than teacher forcing",
    "Teacher forcing, and scheduled sampling: chrF of translations that the model decodes on its own (arXiv:1506.03099).",
    {
        "teacher forcing": METRIC,
        "scheduled sampling": [*METRIC, "teacher_forcing={kind: linear, end: 0.5, steps: 300}"],
    },
    [Pair("scheduled sampling", "teacher forcing", "teacher_forcing")],
    seconds=2 * SECONDS,
)

RATES = {"warm-up": (3e-3, 100), "no warm-up": (3e-3, 1), "no warm-up, lower rate": (1e-3, 1)}


def norm_placement_verdict(data: Data, pairs: Sequence[Pair]) -> str:
    """Each placement without warm-up: against the same placement with it, and against a lower rate."""
    sentences = []
    for placement, claim in (("post", "needs"), ("pre", "needs no")):
        warm, cold, lower = (data["scores"][f"{placement}, {words}"] for words in RATES)
        without, slower = paired_difference(cold, warm), paired_difference(lower, cold)
        words = {"post": ("not seen", "the data agree"), "pre": ("no difference is seen", "the data say the opposite")}
        sentences.append(
            f"{placement.capitalize()}-norm {claim} warm-up: {words[placement][without.sign > 0]}; without it, the loss"
            f" differs by {written(without)}. Without warm-up, a third of the rate changes the loss by {written(slower)}: to"
            f" {fmean(lower.values()):.2f}, with warm-up and the full rate it is {fmean(warm.values()):.2f}."
        )
    return " ".join(sentences)


NORM_PLACEMENT = on_letters(
    "Pre-norm trains without warm-up, post-norm needs it",
    "Post-norm and pre-norm with a warm-up, without it at the same rate, and without it at a lower one (arXiv:2002.04745).",
    {
        f"{placement}, {words}": [
            *("model.encoder.num_layers=4", "model.decoder.num_layers=4"),
            f"model.defaults.placement={placement}",
            f"schedule={{kind: constant, peak: {peak}, warmup_steps: {steps}}}",
        ]
        for placement in ("post", "pre")
        for words, (peak, steps) in RATES.items()
    },
    [
        Pair(f"{placement}, {better}", f"{placement}, no warm-up", setting)
        for placement in ("post", "pre")
        for better, setting in (("warm-up", "warmup_steps"), ("no warm-up, lower rate", "peak"))
    ],
    norm_placement_verdict,
    seconds=2 * SECONDS,
)

SCHEMES = {
    "sinusoidal": "sinusoidal",
    "learned": "{kind: learned, max_len: 64}",
    "alibi": "alibi",
    "rotary": "rotary_half",
    "t5": "relative_t5",
}
TRAINED, BEYOND = [range(2, 8), range(8, 13)], [range(13, 17), range(17, 25)]


def beyond_length_verdict(data: Data, pairs: Sequence[Pair]) -> str:
    """Letters right beyond the trained lengths, each scheme against learned positions, paired by seed."""

    def right(name: str, buckets: Sequence[range]) -> dict[int, float]:
        values = [data["by_length"][name][bucket(lengths)] for lengths in buckets]
        return {seed: fmean(shares[at] for shares in values) for at, seed in enumerate(data["seeds"])}

    sentences = []
    for pair in pairs:
        difference = paired_difference(right(pair.better, BEYOND), right(pair.other, BEYOND))
        sentences.append(compared(pair, difference, difference.sign, ""))
    shares = ", ".join(
        f"{name} {fmean(right(name, BEYOND).values()):.0f} of {fmean(right(name, TRAINED).values()):.0f}" for name in SCHEMES
    )
    same = paired_difference(data["scores"]["sinusoidal"], data["scores"]["learned"])
    return (
        f"Per cent of letters right at 13 to 24 letters: {' '.join(sentences)} Beyond the trained length, of what it is at"
        f" trained lengths: {shares}; a guess is {RANDOM:.0f}. At trained lengths sinusoidal against learned differ"
        f" in validation loss by {written(same)}."
    )


BEYOND_LENGTH = on_letters(
    "Relative schemes (ALiBi, rotary, T5) and sinusoids go beyond the trained length, learned positions do not",
    "Position schemes on text longer than any in training: letters to write backwards, trained on 2 to 12 of them.",
    {name: [f"model.defaults.position={scheme}"] for name, scheme in SCHEMES.items()},
    [Pair(name, "learned", "position", "goes further than") for name in SCHEMES if name != "learned"],
    beyond_length_verdict,
    buckets=[*TRAINED, *BEYOND],
)
