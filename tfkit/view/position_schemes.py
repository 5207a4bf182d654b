"""The pictures of position schemes, as the sources draw them, one row for each scheme:

embeddings      the vectors, position x dimension; curves of some dimensions; similarity between positions
queries_keys    the angles, position x feature; the cosine of some; similarity between positions
scores          the bias, head x distance; the same as curves
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from ..nn.position_values import PositionValues
from .pages import page

THEMES = {"light": ("#1c2733", "none"), "dark": ("#e8edf2", "none"), "paper": ("#1c2733", "white")}
"""Colours of lines and of the background."""
CURVES = 4
"""The number of dimensions whose curves are drawn. Their wavelengths differ."""
HEADS = 12
"""The largest number of heads in a legend."""
MAX_CELLS = 2048
"""Rows and columns of a heat map: more than there are pixels. Of a larger table every second, third, ... is drawn."""
STYLES = ("-", "--", "-.", ":")
"""Styles of curves, so that colour is not the only difference."""
PLACES = {
    "embeddings": "added to embeddings", "queries_keys": "rotates queries and keys", "scores": "bias of attention scores",
}  # fmt: skip


def draw(rows: Sequence[tuple[str, PositionValues]], form: str, theme: str = "paper") -> bytes:
    """The pictures of some schemes, each row with a title, as `svg` or `png`. The themes light and dark are for a page, where
    the background is transparent."""
    ink, paper = THEMES[theme]
    colours: Any = {f"{name}color": ink for name in ("text.", "axes.label", "xtick.", "ytick.", "axes.edge")}
    with matplotlib.rc_context(
        {**colours, "svg.hashsalt": "tfkit", "svg.fonttype": "none", "text.parse_math": False, "font.size": 9}
    ):
        figure = Figure(figsize=(12, 3.2 * len(rows)), facecolor=paper, layout="constrained")
        axes = figure.subplots(len(rows), 3, squeeze=False)
        for line, (title, values) in zip(axes, rows, strict=True):
            _row(figure, line, title, values)
        for panel in axes.flat:
            panel.set_facecolor("none")
        target = io.BytesIO()
        figure.savefig(target, format=form, dpi=110, metadata={"Date": None} if form == "svg" else None)
    return target.getvalue()


def _row(figure: Figure, axes: Sequence[Axes], title: str, values: PositionValues) -> None:
    table = values.table.numpy()
    if values.place == "scores":
        _heat(figure, axes[0], table, title, "head", "distance, key - query", (values.first, 0), "RdBu")
        _bias_curves(axes[1], table, values.first)
        axes[0].yaxis.set_major_locator(MaxNLocator(integer=True))
        axes[2].remove()
        place = axes[1].get_subplotspec()
        assert place is not None
        axes[1].set_subplotspec(place.get_gridspec()[place.rowspan.start, 1:])
        return
    angle = values.place == "queries_keys"
    x = "feature" if angle else "dimension"
    _heat(figure, axes[0], table, title, "position", x, (0, values.first), "twilight" if angle else "RdBu")
    _curves(axes[1], table, np.cos if angle else np.asarray, "cosine of the angle" if angle else "value", x)
    assert values.similarity is not None
    _heat(figure, axes[2], values.similarity.numpy(), "similarity", "position", "position", (values.first,) * 2, "viridis")


def _heat(
    figure: Figure, axes: Axes, table: NDArray[Any], title: str, y: str, x: str, first: tuple[int, int], colours: str
) -> None:  # fmt: skip
    """A heat map. `first` is the number of the first column and row. Diverging colours are centred at zero."""
    rows, columns = table.shape
    table = table[:: -(-rows // MAX_CELLS), :: -(-columns // MAX_CELLS)].astype(np.float64)
    limit = float(np.abs(table).max()) or 1.0
    low, high = (-limit, limit) if colours != "viridis" else (float(table.min()), 1.0)
    left, top = first
    extent = (left - 0.5, left + columns - 0.5, top + rows - 0.5, top - 0.5)
    image = axes.imshow(
        table, aspect="auto", interpolation="nearest", cmap=colours, vmin=low, vmax=max(high, low + 1e-9), extent=extent
    )
    axes.set(title=title, xlabel=x, ylabel=y)
    figure.colorbar(image, ax=axes)


def _curves(axes: Axes, table: NDArray[Any], value: Callable[[NDArray[Any]], NDArray[Any]], label: str, x: str) -> None:
    """Some dimensions over position, from the fastest wave on, with wavelengths that grow."""
    width = table.shape[1]
    chosen = sorted({min(int(width * share), width - 1) for share in (0, 1 / 16, 1 / 8, 1 / 4)})
    for number, at in enumerate(chosen[:CURVES]):
        axes.plot(value(table[:, at].astype(np.float64)), STYLES[number % len(STYLES)], label=f"{x} {at}", linewidth=1.4)
    axes.set(title=label, xlabel="position")
    _legend(axes)


def _bias_curves(axes: Axes, table: NDArray[Any], first: int) -> None:
    distances = np.arange(first, first + table.shape[1])
    few = len(table) <= HEADS
    colours = matplotlib.colormaps["viridis"](np.linspace(0.25, 0.8, len(table)))
    for head, values in enumerate(table):
        label, colour = (f"head {head}", f"C{head % 10}") if few else (None, colours[head])
        axes.plot(distances, values, STYLES[head % len(STYLES)], color=colour, label=label, linewidth=1.2)
    axes.set(title="bias over distance", xlabel="distance, key - query")
    if few:
        _legend(axes)


def _legend(axes: Axes) -> None:
    axes.legend(fontsize=7, frameon=False, loc="center left", bbox_to_anchor=(1, 0.5))


SHOWN = 8
"""Rows and columns of the table of numbers."""


@dataclass(frozen=True)
class Picture:
    """A picture in both themes, with the first numbers of its table."""

    title: str
    light: str
    dark: str
    about: str
    columns: Sequence[str]
    rows: Sequence[tuple[str, Sequence[str]]]


def positions_page(title: str, groups: Sequence[Sequence[tuple[str, PositionValues]]]) -> str:
    """The page about a model. A scheme has rows of a title and values: two rows where models are compared."""
    sections = [(f"{rows[0][1].name}: {rows[0][1].kind}", [_picture(*row) for row in rows]) for rows in groups]
    return page(Path(__file__).with_name("positions.html"), title=f"Positions of {title}", sections=sections)


def _picture(title: str, values: PositionValues) -> Picture:
    light, dark = (
        f"data:image/png;base64,{base64.b64encode(draw([(title, values)], 'png', theme)).decode()}"
        for theme in ("light", "dark")
    )
    table, bias = values.table, values.place == "scores"
    if bias:  # the nearest distances
        start = max(-values.first - SHOWN + 1, 0)
        part, columns = table[:SHOWN, start : start + SHOWN], [f"{values.first + start + at}" for at in range(SHOWN)]
    else:
        part, columns = table[:SHOWN, :SHOWN], [str(at) for at in range(SHOWN)]
    word = "head" if bias else "position"
    rows = [(f"{word} {number}", [f"{value:.4g}" for value in row]) for number, row in enumerate(part.tolist())]
    size = f"{table.shape[0]} {word}s x {table.shape[1]} {'distances' if bias else 'features'}"
    weights = "learned" if values.learned else "no weights"
    about = f"{title}, {PLACES[values.place]}, {weights}, {size}"
    return Picture(title, light, dark, about, columns[: part.shape[1]], rows)
