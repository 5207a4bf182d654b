"""A comparison of recipes: the table of scores for the terminal, and a self-contained page with curves."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..comparison import CandidateResult, Comparison
from ..train.log import ValidationEntry, read_log
from .curve import BOTTOM, HEIGHT, LEFT, SCORES, TOP, WIDTH, round_ticks
from .pages import page

if TYPE_CHECKING:
    from rich.table import Table

COLUMNS = ("recipe", "runs", "mean", "sd", "min", "max", "difference to the first", "95 % interval", "parameters", "steps")
COLOURS = 6
DOT_ROW = 26


@dataclass(frozen=True)
class Band:
    """The curve of a recipe: the mean over seeds of each validation, and the range."""

    points: Sequence[tuple[float, float, float, float]]
    """Step, mean, lowest and highest value."""


def metric_name(metric: str) -> str:
    """The name of a metric with its direction."""
    return "validation nll, lower is better" if metric == "loss" else f"{SCORES[metric]}, higher is better"


def number(value: float) -> str:
    """Four digits, or a dash for NaN."""
    return "–" if math.isnan(value) else f"{value:.4g}"


def cells(comparison: Comparison, candidate: CandidateResult) -> list[str]:
    """The row of a recipe, in the order of `COLUMNS`."""
    scores, runs = list(candidate.scores.values()), list(candidate.runs.values())
    difference = comparison.difference(candidate)
    first = candidate is comparison.candidates[0]
    known = not first and not math.isnan(difference.low)
    return [
        candidate.name,
        f"{len(runs)} of {len(comparison.seeds)}",
        number(candidate.mean),
        number(candidate.deviation),
        number(min(scores, default=math.nan)),
        number(max(scores, default=math.nan)),
        "" if first or not difference.seeds else f"{difference.mean:+.4g}",
        f"{difference.low:+.4g} to {difference.high:+.4g}" if known else "" if first else "–",
        f"{runs[0].parameters:,}" if runs else "–",
        f"{statistics.fmean(run.steps for run in runs):,.0f}" if runs else "–",
    ]


def notes(comparison: Comparison) -> list[str]:
    """The verdicts, and what limits them."""
    sentences = [comparison.verdict(candidate) for candidate in comparison.candidates[1:]]
    if len(comparison.seeds) == 1:
        sentences.append("One seed gives no spread: use `--seeds 3` or more.")
    if len(comparison.candidates) > 2:
        sentences.append("Each interval is for one difference alone; with several recipes, one may exclude 0 by chance.")
    for candidate in comparison.candidates:
        if lost := sorted(set(candidate.runs) - set(candidate.scores)):
            sentences.append(
                f"{candidate.name}: the score of seed {', '.join(map(str, lost))} is NaN or infinite, and is left out."
            )
        sentences += [f"{candidate.name}, seed {seed} failed: {error}" for seed, error in candidate.failures.items()]
    return sentences


def comparison_table(comparison: Comparison) -> Table:
    """The table for the terminal."""
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=metric_name(comparison.metric), title_justify="left")
    for column in COLUMNS:
        table.add_column(column, justify="left" if column == "recipe" else "right")
    for candidate in comparison.candidates:
        table.add_row(*cells(comparison, candidate))
    return table


def comparison_data(comparison: Comparison) -> dict[str, Any]:
    """The comparison as plain data, for JSON."""

    def finite(value: float | None) -> float | None:
        return value if value is not None and math.isfinite(value) else None

    def data(candidate: CandidateResult) -> dict[str, Any]:
        difference = comparison.difference(candidate)
        paired = {name: getattr(difference, name) for name in ("seeds", "mean", "low", "high", "p")}
        return {
            "name": candidate.name,
            "scores": {str(seed): finite(run.score) for seed, run in candidate.runs.items()},
            "mean": finite(candidate.mean),
            "deviation": finite(candidate.deviation),
            "failures": {str(seed): error for seed, error in candidate.failures.items()},
            "difference": {name: finite(value) for name, value in paired.items()},
        }

    verdicts = notes(comparison)
    candidates = [data(candidate) for candidate in comparison.candidates]
    return {"metric": comparison.metric, "seeds": list(comparison.seeds), "recipes": candidates, "notes": verdicts}


def comparison_page(comparison: Comparison, title: str) -> str:
    """The page. Raises StoreError for a damaged log."""
    logs = {
        candidate.name: [_validations(candidate.directory / f"seed-{seed}") for seed in candidate.runs]
        for candidate in comparison.candidates
    }
    names = sorted({name for runs in logs.values() for run in runs for entry in run for name in entry.scores})
    charts = [band_chart("validation nll, nats per label", _bands(logs, lambda entry: entry.nll))]
    charts += [band_chart(SCORES.get(name, name), _bands(logs, partial(_score, name))) for name in names]
    return page(
        Path(__file__).with_name("comparison.html"),
        title=title,
        verdicts=notes(comparison),
        seeds=", ".join(map(str, comparison.seeds)),
        names=[candidate.name for candidate in comparison.candidates],
        colours=COLOURS,
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        charts=[chart for chart in charts if chart is not None],
        dots=_dots(comparison),
        columns=COLUMNS,
        rows=[cells(comparison, candidate) for candidate in comparison.candidates],
    )


def _validations(run: Path) -> list[ValidationEntry]:
    return [entry for entry in read_log(run / "log.jsonl") if isinstance(entry, ValidationEntry)]


def _score(name: str, entry: ValidationEntry) -> float | None:
    return entry.scores.get(name)


def _bands(
    logs: Mapping[str, Sequence[Sequence[ValidationEntry]]], value: Callable[[ValidationEntry], float | None]
) -> list[Band]:
    """For each recipe, the values of the n-th validations of its seeds. Only seeds that reach the n-th are in its mean."""
    bands = []
    for runs in logs.values():
        points = []
        for at in range(max(map(len, runs), default=0)):
            entries = [run[at] for run in runs if at < len(run)]
            measured = [
                (entry.step, number) for entry in entries if (number := value(entry)) is not None and math.isfinite(number)
            ]
            if measured:
                values = [number for _, number in measured]
                step = statistics.fmean(step for step, _ in measured)
                points.append((step, statistics.fmean(values), min(values), max(values)))
        bands.append(Band(points))
    return bands


def band_chart(label: str, bands: Sequence[Band]) -> dict[str, Any] | None:
    """A chart with a line and a range per recipe; None without points."""
    points = [point for band in bands for point in band.points]
    if not points:
        return None
    low, high = min(point[2] for point in points), max(point[3] for point in points)
    ticks, last = round_ticks(low, high), max(point[0] for point in points) or 1
    low, high = min(low, ticks[0]), max(high, ticks[-1])

    def at(step: float, value: float) -> str:
        across = LEFT + (WIDTH - LEFT - 8) * step / last
        return f"{across:.1f},{TOP + (HEIGHT - TOP - BOTTOM) * (high - value) / ((high - low) or 1):.1f}"

    lines = [" ".join(at(step, mean) for step, mean, _, _ in band.points) for band in bands]
    ranges = [
        " ".join([at(step, top) for step, _, _, top in band.points] + [at(step, end) for step, _, end, _ in band.points[::-1]])
        for band in bands
    ]
    places = [(f"{tick:g}", float(at(0, tick).split(",")[1])) for tick in ticks]
    return {"label": label, "last": f"{last:,.0f}", "ticks": places, "lines": lines, "ranges": ranges}


def _dots(comparison: Comparison) -> dict[str, Any] | None:
    """The score of every run as a dot on the line of its recipe, and the mean as a bar; None without scores."""
    scores = [score for candidate in comparison.candidates for score in candidate.scores.values()]
    if not scores:
        return None
    ticks = round_ticks(min(scores), max(scores))
    low, high = min(*scores, *ticks), max(*scores, *ticks)

    def across(value: float) -> float:
        return 8 + (WIDTH - 24) * (value - low) / ((high - low) or 1)

    rows = [
        (candidate.name, TOP + 14 + 2 * DOT_ROW * at,
         [(seed, score, across(score)) for seed, score in candidate.scores.items()],
         across(candidate.mean) if candidate.scores else None)
        for at, candidate in enumerate(comparison.candidates)
    ]  # fmt: skip
    height = TOP + 2 * DOT_ROW * len(rows) + 20
    label = metric_name(comparison.metric)
    return {"label": label, "rows": rows, "height": height, "ticks": [(f"{tick:g}", across(tick)) for tick in ticks]}
