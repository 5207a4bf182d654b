"""Where boxes and edges are. A chain of nodes is a column; a node stands in a row below the nodes that it reads.

A memory does not push its reader down, so that encoder and decoder stand side by side. Edges of a chain are straight. Memories,
shared tables and other edges leave a box at its side and run in the gutters between columns, each in a lane of its own.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .boxes import WIDTH, Box, box, wrapped
from .marks import Marks

GAP, MARGIN, LANE, LEGEND, FACTS = 40, 20, 11, 118, 17
"""Between rows, around the drawing, between lanes, width of an entry of the legend, height of a line of facts."""


Heights = tuple[float, float, float]
"""By face: folded, unfolded, with single layers."""


@dataclass(frozen=True)
class Point:
    """A point of an edge. Its heights are relative to a row, one for each face of a node."""

    x: float
    row: int
    node: str
    heights: Heights

    @property
    def unfolded(self) -> float:
        return self.heights[1]


@dataclass(frozen=True)
class Edge:
    """An edge. `role` is input, memory, table, or the field that reads another node."""

    source: str
    target: str
    role: str
    points: tuple[Point, ...]


@dataclass(frozen=True)
class Placed:
    box: Box
    x: float
    row: int


@dataclass(frozen=True)
class Drawing:
    """A drawing of a model. `facts` are lines about all of it."""

    title: str
    facts: tuple[str, ...]
    nodes: tuple[Placed, ...]
    edges: tuple[Edge, ...]
    width: float

    @property
    def tops(self) -> list[float]:
        """The top of each row, and the end of the last one with its gap, if all nodes are unfolded."""
        tops = [float(GAP)]
        for row in range(1 + max(node.row for node in self.nodes)):
            tops.append(tops[-1] + max(node.box.unfolded.height for node in self.nodes if node.row == row) + GAP)
        return tops

    @property
    def legend(self) -> float:
        """The height of the facts and the legend, below the last row."""
        return 44.0 + FACTS * len(self.facts)

    @property
    def height(self) -> float:
        return self.tops[-1] + self.legend


def drawing(data: Mapping[str, Any], facts: str, marks: Marks) -> Drawing:
    """The drawing of `model_data`, with a line of facts about the whole model. Marks say how boxes differ from those of another
    one."""
    boxes = {node["name"]: box(node, data["outputs"], marks) for node in data["nodes"]}
    columns = _columns(data["nodes"])
    rows = _rows(data["nodes"], columns)
    return _Router(data, boxes, columns, rows).drawing(facts)


def _inputs(node: Mapping[str, Any]) -> list[str]:
    """The nodes whose outputs it works on, and not only looks at."""
    return [ref.split(".")[0] for role, ref in node["reads"].items() if role.split(".")[0] in ("input", "inputs")]


def _read_by(node: Mapping[str, Any]) -> list[str]:
    return [ref.split(".")[0] for ref in node["reads"].values()]


def _columns(nodes: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """The column of each node. A node continues the column of its first input, unless another node does already."""
    chains: list[list[str]] = []
    for node in nodes:
        inputs = _inputs(node)
        chain = next((chain for chain in chains if chain[-1] in inputs[:1]), None)
        if chain is None:
            chains.append([node["name"]])
        else:
            chain.append(node["name"])
    readers = {ref.split(".")[0] for node in nodes for role, ref in node["reads"].items() if role not in ("input", "inputs.0")}
    ordered = sorted(chains, key=lambda chain: not readers & set(chain))  # what another column reads stands at its left
    return {name: at for at, chain in enumerate(ordered) for name in chain}


def _rows(nodes: Sequence[Mapping[str, Any]], columns: Mapping[str, int]) -> dict[str, int]:
    rows: dict[str, int] = {}
    for node in nodes:
        above = [rows[ref] + 1 for ref in _inputs(node)]
        above += [rows[ref] + (columns[ref] == columns[node["name"]]) for ref in _read_by(node)]
        rows[node["name"]] = max(above, default=0)
    readers: dict[str, list[int]] = defaultdict(list)  # the rows of the nodes that read a node
    for node in nodes:
        for ref in _read_by(node):
            readers[ref].append(rows[node["name"]])
    for node in nodes:  # inputs of the model stand just above the first node that reads them
        if not node["reads"] and readers[node["name"]]:
            rows[node["name"]] = max(min(readers[node["name"]]) - 1, 0)
    return rows


class _Router:
    """Routes the edges of one drawing."""

    def __init__(
        self, data: Mapping[str, Any], boxes: Mapping[str, Box], columns: Mapping[str, int], rows: Mapping[str, int]
    ) -> None:
        self.data, self.boxes, self.columns, self.rows = data, boxes, columns, rows
        self.wanted = [
            (ref.split(".")[0], node["name"], _role(field)) for node in data["nodes"] for field, ref in node["reads"].items()
        ]
        self.wanted += [(node["shares"], node["name"], "table") for node in data["nodes"] if node["shares"]]
        self.taken = {(columns[name], rows[name]) for name in boxes}
        self.arriving: dict[str, list[tuple[str, str]]] = defaultdict(list)  # sources and roles by target
        for source, target, role in self.wanted:
            self.arriving[target].append((source, role))
        self.lanes: dict[int, list[tuple[str, str]]] = {}
        for source, target, role in self.wanted:
            if not self._direct(source, target, role):
                for gutter in dict.fromkeys(self._gutters(source, target)):
                    lanes = self.lanes.setdefault(gutter, [])
                    lanes += [] if (source, role) in lanes else [(source, role)]
        self.left = [MARGIN + self._room(-1)]
        for column in range(1 + max(columns.values())):
            self.left.append(self.left[-1] + WIDTH + self._room(column))

    def drawing(self, facts: str) -> Drawing:
        nodes = [Placed(box, self.left[self.columns[name]], self.rows[name]) for name, box in self.boxes.items()]
        edges = [Edge(source, target, role, self._route(source, target, role)) for source, target, role in self.wanted]
        roles = len({edge.role for edge in edges})
        width = max(self.left[-1] + MARGIN, 2.0 * MARGIN + LEGEND * max(roles, 2))
        return Drawing(self.data["name"], tuple(wrapped(facts, width - 2 * MARGIN)), tuple(nodes), tuple(edges), width)

    def _room(self, gutter: int) -> float:
        """The width of a gutter."""
        last = max(self.columns.values())
        lanes = len(self.lanes.get(gutter, ()))
        return lanes * LANE + 24 if lanes else 0 if gutter in (-1, last) else 24

    def _direct(self, source: str, target: str, role: str) -> bool:
        """Whether an edge leaves at the bottom and enters at the top: no box of its column is in between."""
        if role != "input":
            return False
        between = range(self.rows[source] + 1, self.rows[target])
        return not any((self.columns[source], row) in self.taken for row in between)

    def _gutters(self, source: str, target: str) -> tuple[int, int]:
        """The gutters in which an edge leaves and arrives; gutter n is right of column n."""
        a, b = self.columns[source], self.columns[target]
        return (a, b - 1) if a < b else (a - 1, b) if a > b else (a, a)

    def _route(self, source: str, target: str, role: str) -> tuple[Point, ...]:
        if self._direct(source, target, role):
            return self._down(source, target)
        first, last = self._gutters(source, target)
        leave, enter = self._leaves(source, role), self._enters(source, target, role)
        out, into = (self._side(name, gutter) for name, gutter in ((source, first), (target, last)))
        lanes = [self._lane(gutter, source, role) for gutter in (first, last)]
        middle = []
        if first != last:
            above = -8.0 - 5 * self.lanes[last].index((source, role))
            middle = [Point(x, self.rows[target], "", (above,) * 3) for x in lanes]
        starts = [Point(x, self.rows[source], source, leave) for x in (out, lanes[0])]
        ends = [Point(x, self.rows[target], target, enter) for x in (lanes[1], into)]
        return (*starts, *middle, *ends)

    def _down(self, source: str, target: str) -> tuple[Point, ...]:
        row = self.rows[target]
        arriving = [start for start, role in self.arriving[target] if self._direct(start, target, role)]
        x = self._centre(source)
        end = self._centre(target) + 36 * (arriving.index(source) - (len(arriving) - 1) / 2)
        start = Point(x, self.rows[source], source, self._bottoms(source))
        bend = [Point(at, row, "", (-GAP / 2,) * 3) for at in (x, end)] if x != end else []
        return (start, *bend, Point(end, row, "", (0, 0, 0)))

    def _centre(self, name: str) -> float:
        return self.left[self.columns[name]] + WIDTH / 2

    def _side(self, name: str, gutter: int) -> float:
        left = self.left[self.columns[name]]
        return left + WIDTH if gutter >= self.columns[name] else left

    def _lane(self, gutter: int, source: str, role: str) -> float:
        left = self.left[gutter] + WIDTH if gutter >= 0 else float(MARGIN)
        return left + 16 + LANE * self.lanes[gutter].index((source, role))

    def _bottoms(self, name: str) -> Heights:
        folded, unfolded, single = (face.height for face in self.boxes[name].faces)
        return folded, unfolded, single

    def _leaves(self, source: str, role: str) -> Heights:
        """A table leaves at the name of its owner, an output at the bottom of its box."""
        folded, unfolded, single = self._bottoms(source)
        return (16, 16, 16) if role == "table" else (folded - 12, unfolded - 12, single - 12)

    def _enters(self, source: str, target: str, role: str) -> Heights:
        """A memory enters at the first sub-layer that reads it."""
        at = {"table": 16.0, "memory": 50.0, "input": 33.0}.get(role, 67.0)
        folded, unfolded, single = (
            face.entries.get(source, at) if role == "memory" else at for face in self.boxes[target].faces
        )
        return folded, unfolded, single


def _role(field: str) -> str:
    first = field.split()[0].split(".")[0]
    return "input" if first == "inputs" else first
