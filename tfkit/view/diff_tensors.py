"""The tensors in which two models differ, by the names in a saved model. Equal differences of several layers become one row."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from ..errors import BuildError, Diagnostic
from ..graph import Graph
from ..slots.parameter import Parameter
from .formatting import ranges

MOST = 100_000
"""The largest number of tensors of a model that are compared."""
LAYER = re.compile(r"(?<=\.layers\.)[0-9]+")


def differing_tensors(a: Graph, b: Graph) -> list[dict[str, Any]]:
    """The tensors that differ in shape or in being trained.

    Each has its `name`, and for `a` and `b` null or the `shape` of one tensor, `trainable`, the number of `tensors` and their
    `parameters` together. The tensors of a module that only one model has are one row, `nodes.decoder.*`, whose shape is null.

    Raises BuildError if a model has more than `MOST` tensors.
    """
    ours, theirs = _tensors(a), _tensors(b)
    rows: dict[tuple[Any, ...], tuple[list[int], list[list[Parameter]]]] = {}
    for name, one, two in _pairs(ours, theirs):
        found = LAYER.search(name)
        facts = tuple(None if each is None else _facts(each) for each in (one, two))
        numbers, members = rows.setdefault((LAYER.sub("{}", name, count=1), facts), ([], [[], []]))
        if found:
            numbers.append(int(found[0]))
        for side, each in zip(members, (one, two), strict=True):
            side += each or []
    return [
        {"name": name.replace("{}", ranges(sorted(set(numbers)))), "a": _data(members[0], name), "b": _data(members[1], name)}
        for (name, _), (numbers, members) in rows.items()
    ]


def _tensors(graph: Graph) -> dict[str, Parameter]:
    groups = [group for node in graph.nodes.values() for group in node.parameter_groups()]
    if sum(group.times * len(group.parameters) for group in groups) > MOST:
        raise BuildError(Diagnostic("TFK045", f"{graph.name} has more than {MOST:,} tensors", "make num_layers smaller"))
    return {f"nodes.{node.name}.{each.name}": each for node in graph.nodes.values() for each in node.parameters()}


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
    yield from (found.start() for found in re.finditer(r"\.", name))
    yield len(name)


def _facts(members: list[Parameter]) -> tuple[Any, ...]:
    return tuple((each.shape, each.trainable) for each in members)


def _data(members: list[Parameter], name: str) -> dict[str, Any] | None:
    if not members:
        return None
    return {
        "shape": None if name.endswith(".*") else list(members[0].shape),
        "trainable": any(each.trainable for each in members),
        "tensors": len(members),
        "parameters": sum(each.size for each in members),
    }
