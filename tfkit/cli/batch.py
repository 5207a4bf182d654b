"""The batch that costs are counted for, and how long an input of a model may be."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..graph import Batch, Graph
from ..slots.layer import leaves
from ..slots.options import Part, SlotField, marks
from .arguments import nearest, usage_fault

USUAL = 32
"""Positions per row where nobody says how many."""


def batch_of(graph: Graph, size: int, lengths: Mapping[str, int] | None) -> Batch:
    """A batch with a length for every input. Raises UsageError for an unknown input, a missing one, or one too long."""
    most = longest(graph)
    if lengths is None:
        return Batch(size, {name: min(USUAL, limit or USUAL) for name, limit in most.items()})
    for name, length in lengths.items():
        if name not in most:
            fix = nearest(name, most) or f"inputs: {', '.join(most)}"
            raise usage_fault(f"argument --lengths: the model has no input `{name}`", fix)
        limit = most[name]
        if limit is not None and length > limit:
            raise usage_fault(f"argument --lengths: {name}={length} is longer than its position table, {limit}")
    missing = [name for name in most if name not in lengths]
    if missing:
        raise usage_fault(f"argument --lengths: there is none for {', '.join(missing)}", f"inputs: {', '.join(most)}")
    return Batch(size, lengths)


def check_lengths(graph: Graph, lengths: Iterable[int]) -> None:
    """Raises UsageError for a length of queries or keys that no input of the model can have."""
    most = list(longest(graph).values())
    for length in lengths:
        if most and all(limit is not None and length > limit for limit in most):
            tables = " or ".join(sorted({str(limit) for limit in most}))
            raise usage_fault(f"argument --lengths: {length} is longer than the position table, {tables}")


def longest(graph: Graph) -> dict[str, int | None]:
    """The most positions each input may have: the smallest position table on its way, None where there is none."""
    found: dict[str, int | None] = {node.name: None for node in graph.inputs()}
    for node in graph.nodes.values():
        name = (node.signal.length or "").removeprefix("L_")
        for part in _positions(node.options):
            limit = part.entry.max_len(part.options)
            if limit is not None and name in found:
                found[name] = min(limit, found[name] or limit)
    return found


def _positions(options: Any) -> Iterator[Part]:
    """Every position scheme that a node names."""
    models = [options]
    for leaf in leaves(getattr(options, "layers", None) or ()):
        models += [leaf.layer, *(part.options for part in leaf.layer.sublayers or ())]
    for model in models:
        for name, mark in marks(type(model), SlotField):
            if mark.slot == "position" and getattr(model, name) is not None:
                yield getattr(model, name)
