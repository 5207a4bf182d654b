"""A drawing as SVG that needs nothing else: no script, no font, no other file. Light and dark follow the reader's setting."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from ..xml_text import xml_text
from .boxes import PAD, WIDTH, Rectangle
from .layout import FACTS, GAP, LEGEND, MARGIN, Drawing, Edge

BUTTON = Rectangle(WIDTH - PAD - 86, 23, 86, 20, "")
"""The button of a box that shows its layers one by one, beside the shape."""
HEADING = 34
"""The height of the headings of drawings side by side."""
ROLES = {"input": "input", "memory": "memory", "table": "shared table"}
"""The kinds of edge of the legend. All others are drawn as `reads`."""


def svg(drawing: Drawing, prefix: str = "", interactive: bool = False, alone: bool = True) -> Markup:
    """The drawing with all boxes unfolded. `prefix` starts all ids, where a page has several drawings. `interactive` draws all
    faces of each box, for the script of a page. `alone` adds the style sheet and the background."""
    tops = drawing.tops
    return _rendered(
        "drawing.svg", drawing=drawing, tops=tops, height=drawing.height, prefix=prefix, interactive=interactive,
        roles=list(dict.fromkeys(ROLES.get(edge.role, "reads") for edge in drawing.edges)),
        is_rectangle=lambda shape: isinstance(shape, Rectangle), path=lambda edge: path(edge, tops), style=style,
        standalone=alone and not interactive, button=BUTTON, line=FACTS, entry=LEGEND,
    )  # fmt: skip


def side_by_side(drawings: Sequence[tuple[str, Drawing]]) -> Markup:
    """Drawings with their headings as one SVG."""
    *lefts, width = accumulate((drawing.width for _, drawing in drawings), initial=0.0)
    height = HEADING + max(drawing.height for _, drawing in drawings)
    rows = [
        (left, heading, svg(drawing, f"{left:.0f}-", alone=False))
        for left, (heading, drawing) in zip(lefts, drawings, strict=True)
    ]
    return _rendered("side_by_side.svg", rows=rows, width=width, height=height, room=HEADING, margin=MARGIN)


def _rendered(template: str, **values: Any) -> Markup:
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["n"] = lambda number: f"{number:.1f}".removesuffix(".0")
    return Markup(xml_text(environment.get_template(template).render(**values)))


def style(edge: Edge) -> str:
    return edge.role if edge.role in ROLES else "reads"


def path(edge: Edge, tops: list[float]) -> str:
    """The `d` of an edge with all boxes unfolded."""
    return "M" + "L".join(f"{point.x:.1f} {tops[point.row] + point.unfolded:.1f}" for point in edge.points)


def geometry(drawing: Drawing, prefix: str) -> dict[str, Any]:
    """What the script of a page needs to move boxes and edges when a box is folded. A point of an edge refers to a node by its
    number; -1: its height does not depend on one."""
    numbers = {"": -1, **{node.box.name: number for number, node in enumerate(drawing.nodes)}}
    return {
        "prefix": prefix,
        "gap": GAP,
        "legend": drawing.legend,
        "width": drawing.width,
        "nodes": [[node.x, node.row, *(face.height for face in node.box.faces)] for node in drawing.nodes],
        "edges": [
            [[point.x, point.row, numbers[point.node], *point.heights] for point in edge.points] for edge in drawing.edges
        ],
    }
