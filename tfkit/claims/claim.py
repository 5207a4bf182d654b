"""A claim that one process measures, seed by seed; and what the two kinds of claims share: how they run, and their data.

Data are what JSON can hold: `seeds`, the versions of Python, torch and the machine, and the measurements.
"""

from __future__ import annotations

import math
import platform
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..nn.model import Model

Data = dict[str, Any]
Series = dict[str, dict[str, dict[float, float]]]
"""What one seed measures: quantity -> series -> x -> value."""
Summary = dict[str, dict[str, dict[float, tuple[float, float, float, float]]]]
"""quantity -> series -> x -> mean, standard deviation, lowest and highest value over seeds."""


@dataclass(frozen=True)
class Request:
    """How a claim is run.

    Attributes:
        seeds: The number of seeds.
        tiny: Sizes that only show that the command runs; no verdict follows from them.
        directory: Where the runs of a trained claim are kept and resumed; a temporary one by default.
        workers: How many of these runs at once; as many as there are cores by default.
        text: The directory of the text of a claim on real text.
        report: Called with a line after each step of the work.
    """

    seeds: int = 3
    tiny: bool = False
    directory: Path | None = None
    workers: int | None = None
    text: Path | None = None
    report: Callable[[str], None] = print


@dataclass(frozen=True)
class Table:
    """A table of a claim: a title, the head and the rows."""

    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Chart:
    """A chart of a claim: for each name, points of x, mean, lowest and highest value.

    Attributes:
        title: What is drawn.
        x: What x counts.
        lines: The points by name.
        ticks: The text at each x that is no number.
    """

    title: str
    x: str
    lines: dict[str, list[tuple[float, float, float, float]]]
    ticks: dict[float, str] | None = None


@dataclass(frozen=True)
class Measured:
    """A claim that one process measures.

    Attributes:
        sentence: The claim.
        about: What is measured.
        x: What x counts.
        measure: The measurement of one seed; the second argument asks for a tiny one.
        evaluate: Whether the data agree, in sentences.
        seconds: Processor time of one seed, about.
    """

    sentence: str
    about: str
    x: str
    measure: Callable[[int, bool], Series]
    evaluate: Callable[[Summary], str]
    seconds: float

    def needs(self, seeds: int) -> str:
        """What a run takes, in words."""
        return f"{seeds} seeds, one after another, about {duration(self.seconds * seeds)} of one core"

    def run(self, request: Request) -> Data:
        """Measure with each seed, on one thread."""
        import torch

        torch.set_num_threads(1)
        measured = []
        for seed in range(request.seeds):
            start = time.perf_counter()
            measured.append(self.measure(seed, request.tiny))
            request.report(f"seed {seed}, {seed + 1} of {request.seeds}: {time.perf_counter() - start:.1f} s")
        return {**environment(), "seeds": list(range(request.seeds)), "measured": summarise(measured)}

    def verdict(self, data: Data) -> str:
        """Whether the data agree."""
        return self.evaluate(summary_of(data))

    def tables(self, data: Data) -> list[Table]:
        """A table for each quantity."""
        tables = []
        for quantity, series in summary_of(data).items():
            xs = sorted({at for points in series.values() for at in points})
            several = len(data["seeds"]) > 1
            rows = [[f"{at:g}", *(_spread_text(points.get(at), several) for points in series.values())] for at in xs]
            title = f"{quantity}: mean ± standard deviation" if several else quantity
            tables.append(Table(title, [self.x, *series], rows))
        return tables

    def charts(self, data: Data) -> list[Chart]:
        """A chart for each quantity."""
        return [
            Chart(quantity, self.x, {
                name: [(x, mean, low, high) for x, (mean, _, low, high) in sorted(points.items())]
                for name, points in series.items()
            })
            for quantity, series in summary_of(data).items()
        ]  # fmt: skip


def environment() -> Data:
    """What a figure depends on."""
    import torch

    return {"python": platform.python_version(), "torch": torch.__version__, "machine": platform.machine(),
            "instructions": torch.backends.cpu.get_cpu_capability(), "threads": 1}  # fmt: skip


def machine(data: Data) -> str:
    """The seeds and the machine of data, in words."""
    seeds = len(data["seeds"])
    return f"{seeds} seed{'s' * (seeds != 1)}, torch {data['torch']}, {data['machine']} with {data['instructions']}, one thread"


def duration(seconds: float) -> str:
    """A time in words, rounded."""
    return f"{math.ceil(seconds)} seconds" if seconds < 90 else f"{math.ceil(seconds / 60):,} minutes"


def summarise(measured: Sequence[Series]) -> Summary:
    """Mean, standard deviation and range over seeds."""
    return {
        quantity: {
            name: {x: _spread([values[quantity][name][x] for values in measured]) for x in points}
            for name, points in series.items()
        }
        for quantity, series in measured[0].items()
    }


def _spread(values: Sequence[float]) -> tuple[float, float, float, float]:
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return statistics.fmean(values), deviation, min(values), max(values)


def _spread_text(spread: tuple[float, float, float, float] | None, several: bool) -> str:
    if spread is None:
        return ""
    return f"{spread[0]:.4g} ± {spread[1]:.2g}" if several else f"{spread[0]:.4g}"


def summary_of(data: Data) -> Summary:
    """The measurements of data; JSON has the numbers of x as text."""
    return {
        quantity: {name: {float(x): tuple(spread) for x, spread in points.items()} for name, points in series.items()}
        for quantity, series in data["measured"].items()
    }


def model_of(spec: str, seed: int, *overrides: str, backend: str | None = None) -> Model:
    """A new model of a spec's text."""
    from ..builder import build
    from ..spec import parse_spec

    return build(parse_spec(spec, overrides=overrides), seed=seed, backend=backend)


def ranges(series: dict[str, dict[float, tuple[float, float, float, float]]], below: str, above: str) -> str:
    """Which series are below 1 at every x with every seed, which above, and which either."""
    groups: dict[str, list[str]] = {above: [], below: [], "more or less, by length,": []}
    for name, points in series.items():
        low, high = min(spread[2] for spread in points.values()), max(spread[3] for spread in points.values())
        group = above if low > 1 else below if high < 1 else "more or less, by length,"
        groups[group].append(f"{name} ({low:.2g} to {high:.2g})")
    return "; ".join(f"{word} {', '.join(names)}" for word, names in groups.items() if names)
