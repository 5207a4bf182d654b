"""The curve of a training run as one self-contained HTML page: losses and scores over steps, drawn as SVG."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..files import write_whole
from ..train.log import Entry, StepEntry, ValidationEntry, read_log
from .pages import page

WIDTH, HEIGHT, LEFT, BOTTOM, TOP = 720, 260, 56, 34, 12
SCORES = {"bleu": "BLEU", "bleu_lowercase": "lowercase BLEU", "chrf": "chrF2", "accuracy": "accuracy", "f1": "F1",
          "exact_match": "exact match", "aer": "AER"}  # fmt: skip
POINTS = 240
"""The largest number of points of a curve. More steps are averaged with their neighbours."""


@dataclass(frozen=True)
class Line:
    """A curve: its name, the CSS class of its colour, and its points (step, value)."""

    name: str
    colour: str
    points: Sequence[tuple[float, float]]


@dataclass(frozen=True)
class Chart:
    """A drawn chart: `ticks` with their heights, `paths` in the coordinates of the picture."""

    label: str
    last: str
    lines: Sequence[Line]
    ticks: Sequence[tuple[str, float]]
    paths: Sequence[tuple[Line, str]]


def draw_curve(log: Path, place: Path, title: str) -> None:
    """Write the page for the log of a run. Raises StoreError."""
    write_whole(place, curve_page(read_log(log), title))


def curve_page(entries: Sequence[Entry], title: str) -> str:
    """The page for the entries of a log."""
    steps = [entry for entry in entries if isinstance(entry, StepEntry)]
    validations = [entry for entry in entries if isinstance(entry, ValidationEntry)]
    last = max((entry.step for entry in entries), default=1) or 1
    losses = [
        Line("training loss, smoothed labels", "a", _mean(steps, [entry.loss for entry in steps])),
        Line("training nll", "b", _mean(steps, [entry.nll for entry in steps])),
        Line("validation nll", "c", [(entry.step, _number(entry.nll)) for entry in validations]),
    ]
    names = sorted({name for entry in validations for name in entry.scores})
    scores = [
        Line(
            SCORES.get(name, name),
            colour,
            [(validation.step, _number(validation.scores[name])) for validation in validations if name in validation.scores],
        )
        for name, colour in zip(names, "abc", strict=False)
    ]
    rates = [Line("learning rate", "a", _mean(steps, [entry.rate for entry in steps]))]
    charts = [chart_of("nats per target token", losses, last), chart_of("scores of validation, 0 to 100", scores, last)]
    best = next((entry for entry in reversed(validations) if entry.best), None)
    signatures = {name: text for entry in validations for name, text in entry.signatures.items()}
    return page(
        Path(__file__).with_name("curve.html"),
        title=title,
        facts=_facts(steps, best),
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        charts=[chart for chart in [*charts, chart_of("learning rate", rates, last)] if chart is not None],
        columns=["step", "epoch", "perplexity", *(SCORES.get(name, name) for name in names)],
        rows=[(_cells(entry, names), entry is best) for entry in validations],
        signatures=[(SCORES.get(name, name), text) for name, text in signatures.items()],
    )


def _facts(steps: Sequence[StepEntry], best: ValidationEntry | None) -> str:
    if not steps:
        return "No step was made."
    target, seconds = sum(step.target_tokens for step in steps), sum(step.seconds for step in steps)
    text = (
        f"{len(steps):,} steps, {target:,} target tokens, {target / max(seconds, 1e-9):,.0f} of them a second while training."
    )
    if best is not None:
        scores = "".join(f", {SCORES.get(name, name)} {_number(value):.2f}" for name, value in best.scores.items())
        text += f" Best at step {best.step:,}: validation perplexity {_perplexity(best):.2f}{scores}."
    return text


def _perplexity(entry: ValidationEntry) -> float:
    return math.exp(min(_number(entry.nll), 700))


def _number(value: float | None) -> float:
    """A number of the log; null is NaN."""
    return math.nan if value is None else value


def _mean(steps: Sequence[StepEntry], values: Sequence[float | None]) -> list[tuple[float, float]]:
    """The values of all steps as at most `POINTS` points, means of neighbours."""
    width = max(1, math.ceil(len(steps) / POINTS))
    groups = [range(at, min(at + width, len(steps))) for at in range(0, len(steps), width)]
    return [(steps[group[-1]].step, sum(_number(values[at]) for at in group) / len(group)) for group in groups]


def chart_of(label: str, lines: Sequence[Line], last: int) -> Chart | None:
    """The chart, or None if no line has a finite point."""
    points = [point for line in lines for point in line.points if math.isfinite(point[1])]
    if not points:
        return None
    low, high = min(y for _, y in points), max(y for _, y in points)
    ticks = round_ticks(low, high)
    low, high = min(low, ticks[0]), max(high, ticks[-1])

    def across(x: float) -> float:
        return LEFT + (WIDTH - LEFT - 8) * x / last

    def down(y: float) -> float:
        return TOP + (HEIGHT - TOP - BOTTOM) * (high - y) / ((high - low) or 1)

    paths = [(line, " ".join(f"{across(x):.1f},{down(y):.1f}" for x, y in line.points if math.isfinite(y))) for line in lines]
    return Chart(label, f"{last:,}", lines, [(f"{tick:g}", down(tick)) for tick in ticks], [path for path in paths if path[1]])


def round_ticks(low: float, high: float) -> list[float]:
    """Four to eight round numbers in an interval."""
    width = (high - low) or abs(high) or 1.0
    if not 1e-300 < width < math.inf:
        return [low]
    size = 10.0 ** math.floor(math.log10(width))
    step = next(size * part for part in (0.1, 0.2, 0.25, 0.5, 1.0, 2.0) if width / (size * part) <= 7)
    first = math.ceil(low / step - 1e-9)
    return [round(number * step, 12) for number in range(first, math.floor(high / step + 1e-9) + 1)] or [low]


def _cells(entry: ValidationEntry, names: Sequence[str]) -> list[str]:
    scores = [f"{_number(entry.scores[name]):.2f}" if name in entry.scores else "" for name in names]
    return [f"{entry.step:,}", str(entry.epoch), f"{_perplexity(entry):.2f}", *scores]
