"""The data that `tfkit diff --json` prints.

equal       whether the models are the same: no row of `fields`, `tensors` and, of two saved models, `saved`
a, b        file, name (of the model), changed (values of --set), saved (whether it is a saved model), dtype (float32 for a
            spec), batch (size and lengths for the costs)
fields      field, a, b (values of the resolved specs, null where the field is not set), where (the places: nodes, layers
            `encoder.0-5`, sub-layers `encoder.0-5.ffn`); name, reference, description and expect are not compared
tensors     name (of equal layers together, `nodes.encoder.layers.0-5.norms.ffn.weight`; of a module that only one model has,
            `nodes.decoder.*`); a and b: shape, trainable, tensors, parameters, or null
saved       of two saved models: dtype and weights (the SHA-256 of their file), where they differ: name, a, b
counts      name, a, b: parameters, frozen_parameters, flops (of one forward pass), activation_bytes (kept for the backward
            pass, in float32), weight_bytes
nodes       the trainable parameters of each node in which they differ: name, a, b (null where there is no such node)
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..errors import BuildError, Diagnostic
from ..graph import Batch, Graph, node_costs
from ..graph.costs import total_elements, total_flops
from ..slots.options import LayersField, field_annotations
from ..slots.parameter import Parameter
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
    for difference in differences(a, b):
        key = json.dumps(
            [difference.field, difference.a, difference.b, difference.node, difference.rest, difference.layer is None],
            sort_keys=True,
            allow_nan=False,
        )
        layers.setdefault(key, (difference, []))[1].extend([] if difference.layer is None else [difference.layer])
    rows: dict[str, dict[str, Any]] = {}
    for difference, numbers in layers.values():
        place = ".".join(filter(None, [difference.node, ranges(numbers) if numbers else "", difference.rest]))
        row = {"field": difference.field, "a": difference.a, "b": difference.b}
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


MAX_TENSORS = 100_000
"""The largest number of tensors of a model that are compared."""
LAYER = re.compile(r"(?<=\.layers\.)[0-9]+")


def differing_tensors(a: Graph, b: Graph) -> list[dict[str, Any]]:
    """The tensors that differ in shape or in being trained.

    Each has its `name`, and for `a` and `b` null or the `shape` of one tensor, `trainable`, the number of `tensors` and their
    `parameters` together. The tensors of a module that only one model has are one row, `nodes.decoder.*`, whose shape is null.

    Raises BuildError if a model has more than `MAX_TENSORS` tensors.
    """
    ours, theirs = _tensors(a), _tensors(b)
    rows: dict[tuple[Any, ...], tuple[list[int], list[list[Parameter]]]] = {}
    for name, one, two in _pairs(ours, theirs):
        match = LAYER.search(name)
        facts = tuple(None if parameters is None else _facts(parameters) for parameters in (one, two))
        numbers, members = rows.setdefault((LAYER.sub("{}", name, count=1), facts), ([], [[], []]))
        if match:
            numbers.append(int(match[0]))
        for side, parameters in zip(members, (one, two), strict=True):
            side += parameters or []
    return [
        {"name": name.replace("{}", ranges(sorted(set(numbers)))), "a": _data(members[0], name), "b": _data(members[1], name)}
        for (name, _), (numbers, members) in rows.items()
    ]


def _tensors(graph: Graph) -> dict[str, Parameter]:
    groups = [group for node in graph.nodes.values() for group in node.parameter_groups]
    if sum(group.times * len(group.parameters) for group in groups) > MAX_TENSORS:
        raise BuildError(Diagnostic("TFK045", f"{graph.name} has more than {MAX_TENSORS:,} tensors", "make num_layers smaller"))
    return {
        f"nodes.{node.name}.{parameter.name}": parameter for node in graph.nodes.values() for parameter in node.parameters()
    }


def _pairs(
    a: Mapping[str, Parameter], b: Mapping[str, Parameter]
) -> Iterator[tuple[str, list[Parameter] | None, list[Parameter] | None]]:
    """The names of differing tensors, and of modules that only one side has, with their tensors on both sides."""
    modules = [{name[:end] for name in side for end in _ends(name)} for side in (a, b)]
    alone: dict[str, tuple[int, list[Parameter]]] = {}
    for name in dict.fromkeys([*a, *b]):
        if name in a and name in b:
            one, two = a[name], b[name]
            if (one.shape, one.trainable) != (two.shape, two.trainable):
                yield name, [one], [two]
            continue
        side = 0 if name in a else 1
        top = next(name[:end] for end in _ends(name) if name[:end] not in modules[1 - side])
        alone.setdefault(top if top == name else f"{top}.*", (side, []))[1].append((a, b)[side][name])
    for name, (side, members) in alone.items():
        yield (name, members, None) if side == 0 else (name, None, members)


def _ends(name: str) -> Iterator[int]:
    """Where the names of the modules around a tensor end, and its own name."""
    yield from (match.start() for match in re.finditer(r"\.", name))
    yield len(name)


def _facts(members: list[Parameter]) -> tuple[Any, ...]:
    return tuple((parameter.shape, parameter.trainable) for parameter in members)


def _data(members: list[Parameter], name: str) -> dict[str, Any] | None:
    if not members:
        return None
    return {
        "shape": None if name.endswith(".*") else list(members[0].shape),
        "trainable": any(parameter.trainable for parameter in members),
        "tensors": len(members),
        "parameters": sum(parameter.size for parameter in members),
    }


FLOAT32 = 4
"""Bytes of a float32 activation."""


@dataclass(frozen=True)
class Side:
    """One of two models: the file or directory as it was named, the batch for the costs, the values that `--set` changed, dtype
    and bytes of a weight, and the SHA-256 of the weights, None for a spec."""

    file: str
    spec: ModelSpec
    graph: Graph
    batch: Batch
    changed: tuple[str, ...] = ()
    dtype: str = "float32"
    item_size: int = 4
    digest: str | None = None


def diff_data(a: Side, b: Side) -> dict[str, Any]:
    """Everything in which two models differ. Raises BuildError if one has too many tensors."""
    fields, tensors = differing_fields(a.spec, b.spec), differing_tensors(a.graph, b.graph)
    both = a.digest is not None and b.digest is not None
    pairs = (("dtype", a.dtype, b.dtype), ("weights", a.digest, b.digest)) if both else ()
    saved = [{"name": name, "a": one, "b": two} for name, one, two in pairs if one != two]
    names = dict.fromkeys([*a.graph.nodes, *b.graph.nodes])
    nodes = [
        (name, *(side.graph.nodes[name].count() if name in side.graph.nodes else None for side in (a, b))) for name in names
    ]
    ours, theirs = _counts(a), _counts(b)
    return {
        "equal": not (fields or tensors or saved),
        "a": _side(a),
        "b": _side(b),
        "fields": fields,
        "tensors": tensors,
        "saved": saved,
        "counts": [{"name": name, "a": ours[name], "b": theirs[name]} for name in ours],
        "nodes": [{"name": name, "a": one, "b": two} for name, one, two in nodes if one != two],
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "file": side.file,
        "name": side.spec.name,
        "changed": list(side.changed),
        "saved": side.digest is not None,
        "dtype": side.dtype,
        "batch": {"size": side.batch.size, "lengths": dict(side.batch.lengths)},
    }


def _counts(side: Side) -> dict[str, int]:
    costs = node_costs(side.graph, side.batch)
    trained, frozen = side.graph.parameters(), side.graph.parameters(trainable=False)
    return {
        "parameters": trained,
        "frozen_parameters": frozen,
        "flops": total_flops(costs),
        "activation_bytes": total_elements(costs) * FLOAT32,
        "weight_bytes": (trained + frozen) * side.item_size,
    }
