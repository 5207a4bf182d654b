"""The resolved fields in which two specs differ. Equal differences of several layers, sub-layers or nodes become one row."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..slots.options import LayersField, field_annotations
from ..spec import ModelSpec, resolved
from .formatting import ranges

SKIPPED = frozenset({"kind", "name", "layers", "sublayers", "repeat"})
"""Fields of a node, a layer or a sub-layer that have rows of their own."""

Layer = Mapping[str, Any]


@dataclass(frozen=True)
class Difference:
    """A field with two values, or None where it is not set. `layer` and `rest` are empty outside of a layer."""

    field: str
    a: Any
    b: Any
    node: str = ""
    layer: int | None = None
    rest: str = ""


def differing_fields(a: ModelSpec, b: ModelSpec) -> list[dict[str, Any]]:
    """The fields that differ: `field`, `a`, `b`, and `where`, the places: nodes, `encoder.0-5`, `encoder.0-5.ffn`."""
    layers: dict[str, tuple[Difference, list[int]]] = {}
    for each in differences(a, b):
        key = json.dumps(
            [each.field, each.a, each.b, each.node, each.rest, each.layer is None], sort_keys=True, allow_nan=False
        )
        layers.setdefault(key, (each, []))[1].extend([] if each.layer is None else [each.layer])
    rows: dict[str, dict[str, Any]] = {}
    for each, numbers in layers.values():
        place = ".".join(filter(None, [each.node, ranges(numbers) if numbers else "", each.rest]))
        row = {"field": each.field, "a": each.a, "b": each.b}
        rows.setdefault(json.dumps(row, sort_keys=True, allow_nan=False), {**row, "where": []})["where"] += (
            [place] if place else []
        )
    return list(rows.values())


def differences(a: ModelSpec, b: ModelSpec) -> Iterator[Difference]:
    ours, theirs = resolved(a), resolved(b)
    for name in dict.fromkeys([*a.nodes, *b.nodes]):
        one, two = ours["nodes"].get(name), theirs["nodes"].get(name)
        if one is None or two is None:
            yield Difference("node", one and one["kind"], two and two["kind"], name)
            continue
        if one["kind"] != two["kind"]:
            yield Difference("kind", one["kind"], two["kind"], name)
        for field, x, y in _in_fields(one, two):
            yield Difference(field, x, y, name)
        patterns = [_pattern(spec, data, name) for spec, data in ((a, one), (b, two))]
        if any(patterns):
            yield from _in_layers(name, *patterns)
    if a.outputs != b.outputs:
        yield Difference("outputs", ours["outputs"], theirs["outputs"])


def _pattern(spec: ModelSpec, data: Mapping[str, Any], name: str) -> list[Layer]:
    """The layers of a node in the order of the forward pass."""
    fields = [field for field, _ in field_annotations(type(spec.nodes[name].options), LayersField)]
    groups = data[fields[0]] if fields else []
    return list(_sequence(groups))


def _sequence(groups: list[Any], shared: bool = False) -> Iterator[Layer]:
    """The layers of a pattern. Equal layers of a group are one object."""
    for group in groups:
        one_set = shared or group["shared"]
        inner = list(_sequence(group["layers"], one_set)) if "layers" in group else [{**group, "shared": one_set}]
        for _ in range(group["repeat"]):
            yield from inner


def _in_layers(node: str, a: list[Layer], b: list[Layer]) -> Iterator[Difference]:
    if len(a) != len(b):
        yield Difference("num_layers", len(a) or None, len(b) or None, node)
    known: dict[tuple[int, int], list[tuple[str, str, Any, Any]]] = {}
    for number, (one, two) in enumerate(zip(a, b, strict=False)):
        pair = id(one), id(two)
        if pair not in known:
            known[pair] = list(_in_layer(one, two))
        for rest, field, x, y in known[pair]:
            yield Difference(field, x, y, node, number, rest)


def _in_layer(a: Layer, b: Layer) -> Iterator[tuple[str, str, Any, Any]]:
    """The name of a sub-layer, empty for the layer, the field and both values."""
    for field, x, y in _in_fields(a, b):
        yield "", field, x, y
    one, two = ({part["name"]: part for part in layer.get("sublayers", ())} for layer in (a, b))
    for name in dict.fromkeys([*one, *two]):
        if name not in one or name not in two:
            yield name, "sub-layer", one[name]["kind"] if name in one else None, two[name]["kind"] if name in two else None
            continue
        if one[name]["kind"] != two[name]["kind"]:
            yield name, "kind", one[name]["kind"], two[name]["kind"]
        for field, x, y in _in_fields(one[name], two[name]):
            yield name, field, x, y
    if [name for name in one if name in two] != [name for name in two if name in one]:
        yield "", "sublayers", list(one), list(two)


def _in_fields(a: Layer, b: Layer) -> Iterator[tuple[str, Any, Any]]:
    for field in dict.fromkeys([*a, *b]):
        if field not in SKIPPED:
            yield from _in_value(field, a.get(field), b.get(field))


def _in_value(field: str, a: Any, b: Any) -> Iterator[tuple[str, Any, Any]]:
    """A field, or below it the options that differ if both values are parts of one kind."""
    a, b = ({"kind": x} if isinstance(x, str) and isinstance(y, dict) and "kind" in y else x for x, y in ((a, b), (b, a)))
    if isinstance(a, dict) and isinstance(b, dict) and a.get("kind") == b.get("kind"):
        for name in dict.fromkeys([*a, *b]):
            yield from _in_value(f"{field}.{name}", a.get(name), b.get(name))
    elif a != b or type(a) is not type(b):
        yield field, a, b
