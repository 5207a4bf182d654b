"""What differs between two models, by box of their drawings."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from itertools import islice

from ..diff_data import Difference

FIELDS = 3
"""The largest number of fields that a mark names."""


@dataclass(frozen=True)
class Marks:
    """How the boxes of one model differ from those of another.

    Args:
        nodes: the fields by node; an empty name: the other model has no such node.
        parts: the fields by node and sub-layer, with the number of each layer in which they differ.
    """

    nodes: Mapping[str, list[str]] = field(default_factory=dict)
    parts: Mapping[tuple[str, str], Mapping[int, list[str]]] = field(default_factory=dict)

    def of_node(self, name: str) -> str:
        """The mark of a node; empty if it is equal."""
        fields = self.nodes.get(name, [])
        inside = [part for node, part in self.parts if node == name]
        if not (fields or inside):
            return ""
        return _mark(fields) if fields else f"≠ inside: {_listed(inside)}"

    def of_part(self, node: str, start: int, repeat: int, name: str) -> str:
        """The mark of a sub-layer of the `repeat` layers from `start` on."""
        layers = self.parts.get((node, name), {})
        return next((_mark(layers[number]) for number in sorted(layers) if start <= number < start + repeat), "")


def marks_of(differences: Iterable[Difference], counts: Mapping[str, tuple[int | None, int | None]], side: int) -> Marks:
    """The marks of the first model of two (`side` 0) or the second (1), from the fields that differ and the parameters of each
    node in both models, None where there is no such node."""
    nodes: dict[str, list[str]] = {}
    parts: dict[tuple[str, str], dict[int, list[str]]] = {}
    for difference in differences:
        if difference.layer is None or not difference.rest:
            fields = nodes.setdefault(difference.node, [])
        else:
            fields = parts.setdefault((difference.node, difference.rest), {}).setdefault(difference.layer, [])
        missing = difference.field in ("node", "sub-layer") and (difference.a, difference.b)[1 - side] is None
        name = "" if missing else difference.field
        fields += [] if name in fields else [name]
    for node, (a, b) in counts.items():
        if a != b and node not in nodes and not any(node == of for of, _ in parts):
            nodes[node] = ["parameters"]
    return Marks(nodes, parts)


def _mark(fields: list[str]) -> str:
    return "+ only in this model" if "" in fields else f"≠ {_listed(fields)}"


def _listed(names: list[str]) -> str:
    more = f" and {len(names) - FIELDS} more" if len(names) > FIELDS else ""
    return ", ".join(islice(dict.fromkeys(names), FIELDS)) + more
