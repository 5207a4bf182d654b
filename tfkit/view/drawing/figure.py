"""A drawing as PNG, with the shapes of the SVG. Needs matplotlib."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Sequence
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyBboxPatch

from ...errors import Diagnostic, InputError
from .boxes import Rectangle, Text
from .layout import FACTS, LEGEND, MARGIN, Drawing
from .svg import HEADING, ROLES, style

POINTS = 72 / 100
"""Points of a pixel at 100 dots per inch."""
COLOURS = dict(reversed(re.findall(r"--(\w+): (#\w+)", Path(__file__).with_name("drawing.css").read_text(encoding="utf-8"))))
"""The colours of the light theme, which the style sheet defines first."""
MAX_NODES = 200
"""Nodes of a PNG. Each takes a fortieth of a second."""
SIZES = {"name": 13.0, "part-name": 12.0}
BOLD = {"name", "part-name", "times", "mark"}
DASHES = {"table": (0, (1, 2)), "reads": (0, (5, 3))}


def png(drawings: Sequence[tuple[str, Drawing]], dpi: int = 160) -> bytes:
    """Drawings side by side, with all boxes unfolded; several have headings. 100 dots per inch give one dot for each pixel of
    the SVG. Raises InputError for more than `MAX_NODES` nodes."""
    nodes = sum(len(drawing.nodes) for _, drawing in drawings)
    if nodes > MAX_NODES:
        message = f"a PNG of {nodes:,} nodes takes too much time and memory, and at most {MAX_NODES} are drawn"
        raise InputError(Diagnostic("TFK045", message, "write .svg or .html"))
    top = HEADING if len(drawings) > 1 else 0
    width = sum(drawing.width for _, drawing in drawings)
    height = top + max(drawing.height for _, drawing in drawings)
    figure = Figure(figsize=(width / 100, height / 100), facecolor="white")
    left = 0.0
    for heading, drawing in drawings:
        place = (left / width, 1 - (top + drawing.height) / height, drawing.width / width, drawing.height / height)
        axes = figure.add_axes(place)
        _draw(axes, drawing)
        if top:
            _text(axes, Text(0, -10, heading, "name"), MARGIN, 0)
        left += drawing.width
    target = io.BytesIO()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Glyph .* missing from font")
        figure.savefig(target, format="png", dpi=dpi)
    return target.getvalue()


def _draw(axes: Axes, drawing: Drawing) -> None:
    axes.set(xlim=(0, drawing.width), ylim=(drawing.height, 0))
    axes.axis("off")
    tops = drawing.tops
    for node in drawing.nodes:
        for shape in node.box.unfolded.shapes:
            if isinstance(shape, Rectangle):
                _rectangle(axes, shape, node.x, tops[node.row])
            else:
                _text(axes, shape, node.x, tops[node.row])
    for edge in drawing.edges:
        _edge(axes, style(edge), [(point.x, tops[point.row] + point.unfolded) for point in edge.points])
    for at, fact in enumerate(drawing.facts):
        _text(axes, Text(0, FACTS * at, fact, "fact"), MARGIN, tops[-1])
    below = tops[-1] + FACTS * len(drawing.facts)
    for at, role in enumerate(dict.fromkeys(style(edge) for edge in drawing.edges)):
        left = MARGIN + LEGEND * at
        _edge(axes, role, [(left, below), (left + 26, below)], arrow=False)
        _text(axes, Text(32, 4, ROLES.get(role, role), "fact"), left, below)


def _rectangle(axes: Axes, shape: Rectangle, x: float, y: float) -> None:
    names = shape.style.split()
    marked = "marked" in names
    fill = next((COLOURS[name] for name in names if name in COLOURS), COLOURS["plain"])
    axes.add_patch(
        FancyBboxPatch(
            (x + shape.x, y + shape.y), shape.width, shape.height, boxstyle="round,pad=0,rounding_size=5", facecolor=fill,
            edgecolor=COLOURS["mark" if marked else "edge"], linewidth=2 if marked else 0.8,
            linestyle="--" if marked else "-",
        )
    )  # fmt: skip


def _text(axes: Axes, shape: Text, x: float, y: float) -> None:
    colour = {"mark": "mark", "kind": "soft", "fact": "soft", "note": "soft"}.get(shape.style, "ink")
    axes.text(
        x + shape.x, y + shape.y, shape.text, fontsize=SIZES.get(shape.style, 11.0) * POINTS, color=COLOURS[colour],
        weight="bold" if shape.style in BOLD else "normal", ha="right" if shape.end else "left", va="baseline",
        parse_math=False,
    )  # fmt: skip


def _edge(axes: Axes, role: str, points: list[tuple[float, float]], arrow: bool = True) -> None:
    memory = role == "memory"
    look = {"color": COLOURS["blue" if memory else "edge"], "linewidth": 1.8 if memory else 1.1}
    axes.plot(*zip(*points, strict=True), linestyle=DASHES.get(role, "-"), solid_joinstyle="miter", **look)
    if arrow:
        (x, y), (end, low) = points[-2:]
        near = (end - max(-1.0, min(1.0, end - x)), low - max(-1.0, min(1.0, low - y)))
        axes.annotate("", points[-1], near, arrowprops={"arrowstyle": "-|>", "shrinkA": 0, "shrinkB": 0, **look})
