"""The longest inputs of a model, limited by its position tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from ..slots.layer import leaves
from ..slots.options import Component, SlotField, field_annotations
from .model_graph import Graph


def max_input_lengths(graph: Graph) -> dict[str, int | None]:
    """The maximal length of each input whose length varies: the size of its smallest position table.

    Args:
        graph: the graph of a model.

    Returns:
        By input node, the number of positions; None if no table limits it.
    """
    limits: dict[str, int | None] = {node.name: None for node in graph.inputs() if isinstance(node.signal.length, str)}
    for node in graph.nodes.values():
        if not isinstance(node.signal.length, str):
            continue
        name = node.signal.length.removeprefix("L_")
        for part in _positions(node.options):
            positions = part.entry.max_len(part.options)
            if positions is not None and name in limits:
                limit = positions * node.signal.stride
                limits[name] = min(limit, limits[name] or limit)
    return limits


def counting_padding(graph: Graph) -> frozenset[str]:
    """The inputs in which padding before a token changes its position, somewhere in the model.

    Args:
        graph: the graph of a model.

    Returns:
        Their names.
    """
    return frozenset(
        node.signal.tokens
        for node in graph.nodes.values()
        for part in _positions(node.options)
        if node.signal.tokens is not None and part.entry.counts_padding(part.options)
    )


def _positions(options: Any) -> Iterator[Component]:
    """Every position scheme of a node."""
    models = [options]
    for leaf in leaves(getattr(options, "layers", None) or ()):
        models += [leaf.layer, *(part.options for part in leaf.layer.sublayers or ())]
    for model in models:
        for name, annotation in field_annotations(type(model), SlotField):
            if annotation.slot == "position" and getattr(model, name) is not None:
                yield getattr(model, name)
