"""From the rules of a weight map to single tensors, by the names of our parameters and of their file. No torch."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ..graph import Graph
from .views import Array, Shape, View, from_stored, make_view, stored_shape, to_stored
from .weight_map import Rule


@dataclass(frozen=True)
class TensorRule:
    """One tensor of theirs and the tensors of ours in it.

    Args:
        ours: our names.
        shapes: their shapes.
        theirs: the name in their file.
        views: from ours to theirs.
    """

    ours: tuple[str, ...]
    shapes: tuple[Shape, ...]
    theirs: str
    views: tuple[View, ...]

    @property
    def stored(self) -> Shape:
        """The shape in their file. Raises ValueError if our tensors do not fit the views."""
        return stored_shape(self.views, self.shapes)

    def export(self, arrays: Sequence[Array]) -> Array:
        """Their tensor from ours."""
        return to_stored(self.views, arrays)

    def load(self, array: Array) -> list[Array]:
        """Our tensors from theirs."""
        return from_stored(self.views, array, self.shapes)


def parameter_shapes(graph: Graph) -> dict[str, Shape]:
    """Every parameter of a model by its name in `model.safetensors`."""
    return {
        f"nodes.{name}.{parameter.name}": parameter.shape
        for name, node in graph.nodes.items()
        for parameter in node.parameters()
    }


def tensor_rules(
    rules: Iterable[Rule], shapes: Mapping[str, Shape], config: dict[str, Any]
) -> tuple[list[TensorRule], list[str]]:
    """The rules of every tensor, and our parameters that have none.

    A rule for one layer precedes a rule for all. A rule whose parameters the spec does not have says nothing.
    """
    places = _places(shapes)
    ordered = sorted((rule for rule in rules if rule.holds(config)), key=lambda rule: "{i" in rule.ours[0])
    found: list[TensorRule] = []
    claimed: set[str] = set()
    for rule in ordered:
        views = tuple(make_view(view, config) for view in rule.views)
        for number, leaf in places[rule.ours[0]]:
            ours = tuple(_filled(name, number) + leaf for name in rule.ours)
            if claimed.isdisjoint(ours) and all(name in shapes for name in ours):
                claimed.update(ours)
                found.append(TensorRule(ours, tuple(shapes[name] for name in ours), _filled(rule.theirs, number) + leaf, views))
    return found, sorted(set(shapes) - claimed)


def _places(names: Iterable[str]) -> dict[str, list[tuple[int, str]]]:
    """By template, the numbers of layers and the leaves (`.weight`) with which it is one of the names."""
    found: dict[str, list[tuple[int, str]]] = defaultdict(list)
    for name in names:
        module, _, leaf = name.rpartition(".")
        for template, rest in ((name, ""), (module, f".{leaf}")):
            found[template].append((0, rest))
            general, number = _generalised(template)
            if number is not None:
                found[general].append((number, rest))
    return found


def _generalised(name: str) -> tuple[str, int | None]:
    """The name with `{i}` for the number after `layers`, and the number."""
    parts = name.split(".")
    for before, part in enumerate(parts[1:]):
        if parts[before] == "layers" and part.isdecimal():
            return ".".join([*parts[: before + 1], "{i}", *parts[before + 2 :]]), int(part)
    return name, None


def _filled(template: str, number: int) -> str:
    return template.replace("{i}", str(number)).replace("{i-1}", str(number - 1))
