"""One claim as one command: measure over seeds, print a table and a verdict, write JSON and a page.

A measurement of one seed is a mapping: quantity -> series -> x -> value. The table and the figure show the mean over
seeds and the spread.
"""

from __future__ import annotations

import argparse
import json
import math
import platform
import statistics
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from tfkit.view.comparison import Band, band_chart
from tfkit.view.pages import page

Measured = dict[str, dict[str, dict[float, float]]]
Summary = dict[str, dict[str, dict[float, tuple[float, float, float, float]]]]
"""quantity -> series -> x -> mean, standard deviation, lowest and highest value."""


@dataclass(frozen=True)
class Claim:
    """A claim of the sources.

    Attributes:
        text: The claim.
        x: What x counts.
        measure: The measurement of one seed; the second argument asks for a tiny one, which tests use.
        verdict: Whether the data agree, in a sentence.
    """

    text: str
    x: str
    measure: Callable[[int, bool], Measured]
    verdict: Callable[[Summary], str]


def summarise(found: list[Measured]) -> Summary:
    """Mean, standard deviation and range over seeds."""
    return {
        quantity: {
            name: {x: _spread([each[quantity][name][x] for each in found]) for x in points} for name, points in series.items()
        }
        for quantity, series in found[0].items()
    }


def _spread(values: list[float]) -> tuple[float, float, float, float]:
    deviation = statistics.stdev(values) if len(values) > 1 else math.nan
    return statistics.fmean(values), deviation, min(values), max(values)


def versions() -> dict[str, Any]:
    """What a figure depends on."""
    return {"python": platform.python_version(), "torch": torch.__version__, "machine": platform.machine(),
            "instructions": torch.backends.cpu.get_cpu_capability(), "threads": torch.get_num_threads()}  # fmt: skip


def main(claim: Claim, arguments: list[str] | None = None) -> dict[str, Any]:
    """Run the command line of a claim and return what it writes."""
    parser = argparse.ArgumentParser(description=claim.text)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--stored", type=Path, metavar="JSON", help="evaluate a stored result again; nothing is measured")
    parser.add_argument("--tiny", action="store_true", help="sizes that only show that the command runs")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--figure", type=Path, help="a page (.html) or a picture (.svg, .png)")
    options = parser.parse_args(arguments)
    if options.stored:
        return evaluated_again(options.stored, claim.text, lambda result: claim.verdict(stored_summary(result)))
    torch.set_num_threads(1)
    summary = summarise([claim.measure(seed, options.tiny) for seed in range(options.seeds)])
    verdict = claim.verdict(summary)
    console = Console()
    console.print(f"claim: {claim.text}", markup=False)
    for quantity, series in summary.items():
        console.print(_table(quantity, claim.x, series))
    console.print(f"verdict: {verdict}", markup=False)
    command = f"python bench/claims/{Path(sys.argv[0]).name} --seeds {options.seeds}"
    result = {
        "claim": claim.text, "verdict": verdict, "command": command, **versions(),
        "seeds": options.seeds, "x": claim.x, "measured": summary,
    }  # fmt: skip
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    if options.figure and options.figure.suffix == ".html":
        options.figure.write_text(_figure(claim, verdict, summary), encoding="utf-8")
    elif options.figure:
        from picture import draw

        draw(result, options.figure)
    return result


def stored_summary(result: Mapping[str, Any]) -> Summary:
    """The measurements of a stored result; JSON has the numbers of x as text."""
    return {
        quantity: {name: {float(x): tuple(spread) for x, spread in points.items()} for name, points in series.items()}
        for quantity, series in result["measured"].items()
    }


def evaluated_again(place: Path, text: str, verdict: Callable[[dict[str, Any]], str]) -> dict[str, Any]:
    """Write the claim and the verdict of today's command into a stored result, whose measurements stay."""
    result = json.loads(place.read_text(encoding="utf-8"))
    result |= {"claim": text, "verdict": verdict(result)}
    place.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    print(f"verdict: {result['verdict']}")
    return dict(result)


def _table(quantity: str, x: str, series: dict[str, dict[float, tuple[float, float, float, float]]]) -> Table:
    xs = sorted({at for points in series.values() for at in points})
    table = Table(x, *series, title=f"{quantity}: mean ± standard deviation")
    for at in xs:
        cells = [f"{points[at][0]:.4g} ± {points[at][1]:.2g}" if at in points else "" for points in series.values()]
        table.add_row(f"{at:g}", *cells)
    return table


def _figure(claim: Claim, verdict: str, summary: Summary) -> str:
    """The page of a claim: a chart per quantity, and the numbers as a table."""
    charts = []
    for quantity, series in summary.items():
        bands = [Band([(x, mean, low, high) for x, (mean, _, low, high) in points.items()]) for points in series.values()]
        charts.append((band_chart(quantity, bands), list(series)))
    rows = [
        (quantity, name, f"{x:g}", *(f"{value:.4g}" for value in spread))
        for quantity, series in summary.items()
        for name, points in series.items()
        for x, spread in points.items()
    ]
    return page(Path(__file__).with_name("claim.html"), title=claim.text, verdict=verdict, charts=charts, x=claim.x, rows=rows)
