"""Heat maps of all heads as a PNG or SVG file, drawn by matplotlib."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .forms import check_matplotlib
from .observation import Observation
from .picture_file import MOST_INCHES, check_number, panels, write_figure

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
    rows = [each for run in panels(observations, texts) for each in run]
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
