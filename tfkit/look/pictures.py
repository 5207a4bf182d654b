"""Attention as PNG and SVG files, drawn by matplotlib: heat maps of all heads, or lines between words, a colour for each
head."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import Diagnostic, InputError
from ..files import write_whole
from ..view.xml_text import xml_text
from .forms import check_matplotlib
from .labels import short
from .observation import Observation, SiteWeights

MOST_INCHES = 80.0
GLYPH = re.compile(r"Glyph (\d+) .* missing from")
"""How matplotlib warns of a character, by its code point."""
EAST_ASIAN = ("Noto Sans CJK JP", "Noto Sans CJK KR", "Source Han Sans", "Droid Sans Fallback", "WenQuanYi Zen Hei", "Unifont")


def panels(observations: Sequence[Observation], texts: int) -> list[list[tuple[str, SiteWeights]]]:
    """The sites of each run with their titles, which name text and model if there are several.

    Args:
        observations: the runs, ordered by text.
        texts: the number of texts.

    Returns:
        One list for each run that has attention.

    Raises:
        InputError: no run has attention weights.
    """
    runs = [
        list(_titled(observation, at, len(observations) // texts, texts))
        for at, observation in enumerate(observations)
        if observation.sites
    ]
    if not runs:
        names = " and ".join(f"`{model}`" for model in dict.fromkeys(observation.model for observation in observations))
        raise InputError(
            Diagnostic("TFK076", f"{names} has no attention to draw", "write a page, with probabilities: -o page.html")
        )
    return runs


def _titled(observation: Observation, at: int, models: int, texts: int) -> Iterator[tuple[str, SiteWeights]]:
    text = f"text {at // models + 1}, " if texts > 1 else ""
    model = f"{observation.model}: " if models > 1 else ""
    for site in observation.sites:
        yield f"{text}{model}{site.name}", site


def _fonts() -> list[str]:
    """Font families in the order in which glyphs are looked up; the last one has Chinese, Japanese and Korean, if installed."""
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return ["DejaVu Sans", *[name for name in EAST_ASIAN if name in installed][:1]]


def check_number(number: int, most: int, of_what: str) -> None:
    """Raises InputError if a picture would have more than `most` rows or panels."""
    if number > most:
        fix = 'choose sites, for instance --site "decoder.*.cross_attention", give fewer texts, or write a page'
        raise InputError(Diagnostic("TFK161", f"{number:,} {of_what} are more than {most}", fix))


def write_figure(figure: Any, place: Path) -> list[str]:
    """Write a figure as `.png` or `.svg`, the same bytes for the same figure.

    Args:
        figure: of matplotlib.

    Returns:
        A notice if characters of a PNG are missing from the installed fonts. An SVG keeps its text.

    Raises:
        StoreError: the file cannot be written.
    """
    import warnings

    import matplotlib as mpl

    stream = BytesIO()
    width, height = figure.get_size_inches()
    options: Any = {"svg.fonttype": "none", "svg.hashsalt": "tfkit", "font.family": _fonts()}
    with mpl.rc_context(options), warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        metadata = {"Date": None} if place.suffix == ".svg" else {}
        dpi = min(150, math.floor(20000 / max(width, height)))
        figure.savefig(stream, format=place.suffix[1:], dpi=dpi, metadata=metadata)
    content = stream.getvalue()
    if place.suffix == ".svg":
        content = xml_text(content.decode()).encode()
    write_whole(place, content)
    messages = [str(warning.message) for warning in caught]
    missing = dict.fromkeys(chr(int(match[1])) for match in map(GLYPH.match, messages) if match)
    for warning, text in zip(caught, messages, strict=True):
        if not GLYPH.match(text):
            warnings.warn_explicit(warning.message, warning.category, warning.filename, warning.lineno)
    if place.suffix == ".svg" or not missing:
        return []
    characters = f"{''.join(missing)[:20]}, {len(missing)} in all"
    return [f"{place}: boxes stand for characters that no installed font has ({characters}); a page or an SVG has them"]


MOST_LABELS = 60
"""The largest number of tokens of an axis with labels."""
MOST_ROWS = 100


def draw_attention(observations: Sequence[Observation], texts: int, place: Path) -> list[str]:
    """Write one heat map per site and head; rows are sites, columns heads. Texts follow each other.

    Args:
        observations: the runs, ordered by text.
        texts: the number of texts.
        place: a file name that ends in `.png` or `.svg`.

    Returns:
        Notices, as of `write_figure`.

    Raises:
        BuildError: matplotlib is not installed.
        InputError: no run has attention weights, or the picture would have more than `MOST_ROWS` rows.
        StoreError: the file cannot be written.
    """
    check_matplotlib()
    rows = [panel for run in panels(observations, texts) for panel in run]
    check_number(len(rows), MOST_ROWS, "rows of heat maps")
    from matplotlib.figure import Figure

    columns = max(len(site.weights) for _, site in rows)
    most = max(max(site.weights.shape[1:]) for _, site in rows)
    size = min(6.0, 1.2 + 0.16 * most)
    inches = min(size * columns, MOST_INCHES), min((size + 0.3) * len(rows), MOST_INCHES)
    figure = Figure(figsize=inches, layout="constrained")
    axes = figure.subplots(len(rows), columns, squeeze=False)
    for row, (title, site) in zip(axes, rows, strict=True):
        for head, axis in enumerate(row):
            if head >= len(site.weights):
                axis.set_visible(False)
                continue
            axis.imshow(site.weights[head], cmap="viridis", vmin=0, vmax=max(float(site.weights[head].max()), 1e-9))
            axis.set_title(f"{title}, head {head}", fontsize=7, parse_math=False)
            _label(axis.set_xticks, site.keys, rotation=90)
            _label(axis.set_yticks, site.queries, rotation=0)
    return write_figure(figure, place)


def _label(set_ticks: Any, names: Sequence[str], rotation: int) -> None:
    if len(names) <= MOST_LABELS:
        set_ticks(range(len(names)), names, rotation=rotation, fontsize=6, parse_math=False)


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
