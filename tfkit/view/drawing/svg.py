"""A drawing as SVG that needs nothing else: no script, no font, no other file. Light and dark follow the reader's setting."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup

from .boxes import PAD, WIDTH, Rectangle
from .layout import FACTS, GAP, LEGEND, Drawing, Edge

BUTTON = Rectangle(WIDTH - PAD - 86, 23, 86, 20, "")
"""The button of a box that shows its layers one by one, beside the shape."""
ROLES = {"input": "input", "memory": "memory", "table": "shared table"}
"""The kinds of edge of the legend. All others are drawn as `reads`."""


def svg(drawing: Drawing, prefix: str = "", interactive: bool = False) -> Markup:
    """The drawing with all boxes unfolded.

    Args:
        drawing: the drawing.
        prefix: the start of all ids, where a page has several drawings.
        interactive: draw both faces of each box, for the script of a page.
    """
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent), autoescape=True, undefined=StrictUndefined, trim_blocks=True,
        lstrip_blocks=True,
    )  # fmt: skip
    environment.filters["n"] = lambda number: f"{number:.1f}".removesuffix(".0")
    tops = drawing.tops
    roles = list(dict.fromkeys(ROLES.get(edge.role, "reads") for edge in drawing.edges))
    template = environment.get_template("drawing.svg")
    text = template.render(
        drawing=drawing, tops=tops, height=drawing.height, prefix=prefix, interactive=interactive, roles=roles,
        is_rectangle=lambda shape: isinstance(shape, Rectangle), path=lambda edge: path(edge, tops), style=style,
        standalone=not interactive, button=BUTTON, line=FACTS, entry=LEGEND,
    )  # fmt: skip
    return Markup(text)


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
        "nodes": [[each.x, each.row, *(face.height for face in each.box.faces)] for each in drawing.nodes],
        "edges": [
            [[point.x, point.row, numbers[point.node], *point.heights] for point in edge.points] for edge in drawing.edges
        ],
    }
