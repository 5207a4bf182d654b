"""The picture and the page of a claim, drawn from its data."""

from __future__ import annotations

import hashlib
import io
import json
import re
from pathlib import Path
from textwrap import fill
from typing import TYPE_CHECKING, Any

from ..view.comparison import Band, band_chart
from ..view.matplotlib_import import import_matplotlib
from ..view.pages import page
from .claim import Chart, Data, Measured, machine

if TYPE_CHECKING:
    from matplotlib.axes import Axes

    from .trained import Trained

COLOURS = ("#0b57a4", "#b3400b", "#1b7a3d", "#7a2f9e", "#6b6b00", "#444444")
DASHES = ("-", "--", ":", "-.", (0, (6, 2, 1, 2, 1, 2)), (0, (1, 1)))
MARKERS = "os^Dvx"
SETTINGS = {"svg.fonttype": "none", "svg.hashsalt": "tfkit", "font.size": 9, "axes.spines.top": False,
            "axes.spines.right": False, "axes.grid": True, "grid.alpha": 0.25, "axes.titlesize": 9,
            "font.family": "sans-serif", "font.sans-serif": ["DejaVu Sans"], "savefig.facecolor": "white"}  # fmt: skip


def digest(data: Data) -> str:
    """The digest of data, which a picture holds."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, allow_nan=False).encode()).hexdigest()


def picture(name: str, claim: Measured | Trained, data: Data, form: str) -> bytes:
    """An SVG or a PNG: mean over seeds, and range."""
    import_matplotlib()
    from matplotlib import rc_context
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    charts, drawn = claim.charts(data), io.BytesIO()
    columns = 1 if len(charts) == 1 else 3 if len(charts) in (3, 5, 6) else 2
    rows = -(-len(charts) // columns)
    with rc_context(SETTINGS):  # type: ignore[arg-type]
        figure = Figure(figsize=(7.6 if columns > 1 else 5.2, 2.5 * rows + 0.6), layout="constrained")
        FigureCanvasAgg(figure)
        for at, chart in enumerate(charts, start=1):
            axes = figure.add_subplot(rows, columns, at)
            (_bars if all(len(points) == 1 for points in chart.lines.values()) else _lines)(axes, chart)
        figure.supxlabel(f"tfkit claims {name}, {machine(data)}", fontsize=7.5, color="#444444")
        metadata: dict[str, Any] = {"Date": None} if form == "svg" else {}
        metadata["Description"] = f"sha256 of the data: {digest(data)}"
        figure.savefig(drawn, format=form, dpi=110, metadata=metadata)
    if form == "svg":  # indentation and needless digits are a third of the file
        lines = "".join(f"{line.strip()}\n" for line in drawn.getvalue().decode().splitlines())
        return re.sub(r"(\.\d\d)\d+", r"\1", lines).encode()
    return drawn.getvalue()


def _lines(axes: Axes, chart: Chart) -> None:
    """Mean over seeds, with the range as a band."""
    means: list[float] = []
    for at, (name, points) in enumerate(chart.lines.items()):
        xs, mean, low, high = zip(*points, strict=True)
        means += mean
        style: Any = {"color": COLOURS[at % 6], "linestyle": DASHES[at % 6], "marker": MARKERS[at % 6], "markersize": 4}
        axes.plot(xs, mean, label=name, **style)
        axes.fill_between(xs, low, high, color=COLOURS[at % 6], alpha=0.15, linewidth=0)
    if chart.ticks:
        axes.set_xticks(list(chart.ticks), list(chart.ticks.values()))
    elif min(xs) > 0 and max(xs) / min(xs) >= 8 and len(xs) < 10:
        axes.set_xscale("log", base=2)
        axes.set_xticks(xs, [f"{x:g}" for x in xs], minor=False)
    positive = [mean for mean in means if mean > 0]
    if "per cent" not in chart.title and min(means) >= 0 and positive and max(positive) / min(positive) > 30:
        axes.set_yscale("log" if min(means) > 0 else "symlog")
    if min(means) == 0 or (min(means) > 0 and axes.get_yscale() == "linear"):
        axes.set_ylim(bottom=0)
    axes.set_xlabel(chart.x)
    axes.set_title(fill(chart.title, 34))
    if not chart.ticks:  # otherwise the panel beside it names the lines
        axes.legend(frameon=False, fontsize=8)


def _bars(axes: Axes, chart: Chart) -> None:
    """A mark at the mean, and a line from the lowest to the highest seed."""
    for at, points in enumerate(chart.lines.values()):
        (_, mean, low, high), colour = points[0], COLOURS[at % 6]
        axes.plot([low, high], [at, at], color=colour, linewidth=2)
        axes.plot([mean], [at], MARKERS[at % 6], color=colour, markersize=6)
    axes.set_yticks(range(len(chart.lines)), list(chart.lines))
    axes.invert_yaxis()
    axes.set_xlim(left=0)
    axes.set_title(f"{fill(chart.title, 34)}:\nmean, lowest and highest seed")


def claim_page(claim: Measured | Trained, data: Data, verdict: str) -> str:
    """The page of a claim: the verdict, charts and tables."""
    charts = []
    for chart in claim.charts(data):
        bands = band_chart(chart.title, [Band(points) for points in chart.lines.values()])
        if bands and any(len(points) > 1 for points in chart.lines.values()):
            first, *_, last = chart.ticks.values() if chart.ticks else ("0", bands["last"])
            charts.append((bands, list(chart.lines), f"{chart.x}, {first} to {last}"))
    place, tables = Path(__file__).with_name("claim.html"), claim.tables(data)
    words = {"about": claim.about, "verdict": verdict, "machine": machine(data)}
    return page(place, title=claim.sentence, charts=charts, tables=tables, **words)
