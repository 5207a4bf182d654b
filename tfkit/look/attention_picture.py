"""Heat maps of all heads as a PNG or SVG file, drawn by matplotlib."""

from __future__ import annotations

import math
from collections.abc import Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

from ..errors import Diagnostic, InputError
from ..files import write_whole
from .forms import check_matplotlib
from .observation import Observation

MOST_LABELS = 60
"""The largest number of tokens of an axis with labels."""

EAST_ASIAN = ("Noto Sans CJK JP", "Noto Sans CJK KR", "Source Han Sans", "Droid Sans Fallback", "WenQuanYi Zen Hei", "Unifont")


def draw_attention(observations: Sequence[Observation], place: Path) -> None:
    """Write one heat map per site and head; rows are sites, columns heads.

    Args:
        observations: the runs.
        place: a file name that ends in `.png` or `.svg`.

    Raises:
        BuildError: matplotlib is not installed.
        InputError: no run has attention weights.
        StoreError: the file cannot be written.
    """
    check_matplotlib()
    sites = [(each.model, site) for each in observations for site in each.sites]
    if not sites:
        names = " and ".join(f"`{each.model}`" for each in observations)
        raise InputError(
            Diagnostic("TFK076", f"{names} has no attention to draw", "write a page, with probabilities: -o page.html")
        )
    from matplotlib.figure import Figure

    columns = max(len(site.weights) for _, site in sites)
    most = max(max(site.weights.shape[1:]) for _, site in sites)
    size = min(6.0, 1.2 + 0.16 * most)
    figure = Figure(figsize=(min(size * columns, 80.0), min((size + 0.3) * len(sites), 80.0)), layout="constrained")
    axes = figure.subplots(len(sites), columns, squeeze=False)
    for row, (model, site) in zip(axes, sites, strict=True):
        for head, axis in enumerate(row):
            if head >= len(site.weights):
                axis.set_visible(False)
                continue
            axis.imshow(site.weights[head], cmap="viridis", vmin=0, vmax=max(float(site.weights[head].max()), 1e-9))
            prefix = f"{model}: " if len(observations) > 1 else ""
            axis.set_title(f"{prefix}{site.name}, head {head}", fontsize=7, parse_math=False)
            _label(axis.set_xticks, site.keys, rotation=90)
            _label(axis.set_yticks, site.queries, rotation=0)
    _write(figure, place)


def _label(set_ticks: Any, names: Sequence[str], rotation: int) -> None:
    if len(names) <= MOST_LABELS:
        set_ticks(range(len(names)), names, rotation=rotation, fontsize=6, parse_math=False)


def _fonts() -> list[str]:
    """Font families in the order in which glyphs are looked up; the last one has Chinese, Japanese and Korean, if installed."""
    from matplotlib.font_manager import fontManager

    installed = {font.name for font in fontManager.ttflist}
    return ["DejaVu Sans", *[name for name in EAST_ASIAN if name in installed][:1]]


def _write(figure: Any, place: Path) -> None:
    import warnings

    import matplotlib as mpl

    stream = BytesIO()
    width, height = figure.get_size_inches()
    options: Any = {"svg.fonttype": "none", "svg.hashsalt": "tfkit", "font.family": _fonts()}
    with mpl.rc_context(options), warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from", UserWarning)  # a box is drawn instead
        metadata = {"Date": None} if place.suffix == ".svg" else {}
        dpi = min(150, math.floor(20000 / max(width, height)))
        figure.savefig(stream, format=place.suffix[1:], dpi=dpi, metadata=metadata)
    write_whole(place, stream.getvalue())
