"""Lines from words on the left to words on the right, a colour for each head, as a PNG or SVG file, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import Diagnostic, InputError
from .forms import check_matplotlib
from .labels import short
from .observation import Observation, SiteWeights
from .picture_file import MOST_INCHES, check_number, panels, write_figure

COLOURS = ("#1f5fbf", "#a8470a", "#0f7a4a", "#8a2be2", "#b3261e", "#00707a", "#6b5b00", "#a0206a")
DASHES: tuple[Any, ...] = (
    "-", (0, (7, 3)), (0, (2, 3)), (0, (9, 3, 2, 3)), (0, (12, 4)), (0, (4, 4)), (0, (1, 4)), (0, (9, 2, 2, 2, 2, 2)),
)  # fmt: skip
"""The pattern of each head, so that heads differ not only in colour."""
LINES_FROM = 0.05
"""The smallest weight with a line."""
MOST_TOKENS, MOST_PANELS, LONGEST = 100, 200, 16
ROW, WIDTH, COLUMNS = 0.22, 4.2, 3
"""Inches of a word and of a panel; panels beside each other."""


def draw_lines(observations: Sequence[Observation], texts: int, place: Path) -> list[str]:
    """Write one panel per site: queries on the left, keys on the right, and a line for every weight of at least 0.05.

    Width and strength of a line grow with its weight. The panels of each text, and of each model, begin a new row.

    Args:
        observations: the runs, ordered by text.
        texts: the number of texts.
        place: a file name that ends in `.png` or `.svg`.

    Returns:
        Notices, as of `write_figure`.

    Raises:
        BuildError: matplotlib is not installed.
        InputError: no run has attention weights, or there are too many tokens or sites for one picture.
        StoreError: the file cannot be written.
    """
    check_matplotlib()
    runs = panels(observations, texts)
    _check_size(runs)
    import matplotlib as mpl
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D

    columns = min(COLUMNS, max(map(len, runs)))
    rows = [run[at : at + columns] for run in runs for at in range(0, len(run), columns)]
    heights = [max(max(site.weights.shape[1:]) for _, site in row) * ROW + 0.6 for row in rows]
    figure = Figure(figsize=(WIDTH * columns, min(sum(heights) + 0.4, MOST_INCHES)), layout="constrained")
    axes = figure.subplots(len(rows), columns, squeeze=False, gridspec_kw={"height_ratios": heights})
    with mpl.rc_context({"lines.scale_dashes": False}):
        for drawn, row in zip(axes, rows, strict=True):
            for axis in drawn:
                axis.set_axis_off()
            for axis, (title, site) in zip(drawn, row, strict=False):
                _draw(axis, title, site)
        heads = max(len(site.weights) for row in rows for _, site in row)
        keys = [Line2D([], [], **_style(head), linewidth=2, label=f"head {head}") for head in range(heads)]
        figure.legend(handles=keys, loc="outside lower center", ncols=min(heads, 3 * columns), frameon=False, fontsize=8)
        return write_figure(figure, place)


def _check_size(runs: Sequence[Sequence[tuple[str, SiteWeights]]]) -> None:
    """Raises InputError if words or panels do not fit into a picture."""
    sites = [site for run in runs for _, site in run]
    most = max(max(site.weights.shape[1:]) for site in sites)
    if most > MOST_TOKENS:
        fix = f"cut the text with --max-tokens {MOST_TOKENS}, draw heat maps, without --lines, or write a page"
        raise InputError(Diagnostic("TFK161", f"lines would join {most:,} tokens, more than {MOST_TOKENS}", fix))
    check_number(len(sites), MOST_PANELS, "panels of lines")


def _style(head: int) -> dict[str, Any]:
    return {"color": COLOURS[head % len(COLOURS)], "linestyle": DASHES[head % len(DASHES)]}


def _draw(axis: Any, title: str, site: SiteWeights) -> None:
    from matplotlib.collections import LineCollection

    most = max(site.weights.shape[1:])
    axis.set(xlim=(-0.7, 1.7), ylim=(most - 0.5, -0.9))
    axis.set_title(title, fontsize=9, parse_math=False)
    for head, weights in enumerate(site.weights):
        queries, keys = np.nonzero(weights >= LINES_FROM)
        strong = weights[queries, keys]
        ends = [((0.0, float(query)), (1.0, float(key))) for query, key in zip(queries, keys, strict=True)]
        lines = LineCollection(ends, **_style(head), linewidths=0.5 + 3 * strong, alpha=0.15 + 0.85 * strong.clip(0, 1))
        lines.set_gid(f"{title}, head {head}")
        axis.add_collection(lines)
    for x, label, names, side in ((-0.05, "queries", site.queries, "right"), (1.05, "keys", site.keys, "left")):
        axis.text(x, -0.9, label, ha=side, va="center", fontsize=7, style="italic")
        for row, name in enumerate(names):
            axis.text(x, row, short(name, LONGEST), ha=side, va="center", fontsize=8, parse_math=False)
