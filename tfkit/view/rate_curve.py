"""The page of a sweep of learning rates: the losses of its steps, drawn as SVG."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from pathlib import Path

from ..train import RateSweep
from .curve import HEIGHT, LEFT, WIDTH, Line, chart_of
from .pages import page

MOST_ROWS = 100


def sweep_page(sweep: RateSweep, title: str) -> str:
    """The page of a sweep."""
    steps = list(enumerate(sweep.points, 1))
    losses = [
        Line("loss", "b", [(at, point.loss) for at, point in steps]),
        Line("smoothed loss", "a", [(at, point.smoothed) for at, point in steps]),
    ]
    rates = [Line("log10 of the learning rate", "a", [(at, math.log10(point.rate)) for at, point in steps])]
    charts = [chart_of("loss in nats per target token", losses, len(steps)), chart_of("learning rate", rates, len(steps))]
    return page(
        Path(__file__).with_name("curve.html"),
        title=title,
        facts=sweep_text(sweep),
        width=WIDTH,
        height=HEIGHT,
        left=LEFT,
        charts=[chart for chart in charts if chart is not None],
        columns=["step", "rate", "loss", "smoothed"],
        rows=[
            ([str(at), f"{point.rate:.2e}", f"{point.loss:.3f}", f"{point.smoothed:.3f}"], point.rate == sweep.suggestion)
            for at, point in steps[:MOST_ROWS]
        ],
        signatures=[],
    )


def sweep_text(sweep: RateSweep) -> str:
    """The suggestion, and where it comes from."""
    low = sweep.lowest
    lowest = f"the smoothed loss is lowest, {low.smoothed:.3f}, at {low.rate:.2e}"
    if sweep.suggestion is None:
        return f"no rate is suggested: the loss never falls; {lowest}; {sweep.ended}"
    return f"suggested rate: {sweep.suggestion:.2e}, where the smoothed loss falls fastest; {lowest}; {sweep.ended}"


def sweep_json(sweep: RateSweep) -> str:
    """The sweep as JSON."""
    points = [asdict(point) for point in sweep.points]
    data = {"suggestion": sweep.suggestion, "lowest": asdict(sweep.lowest), "ended": sweep.ended, "points": points}
    return json.dumps(data, indent=1, allow_nan=False) + "\n"
