"""The model graph: nodes in an order in which each finds its inputs made, with everything about them that needs no torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from ..slots.layer import Layer
from ..slots.node import NodeContext, NodeKind, Signal
from ..slots.options import Component, LayersField, NodeRef, field_annotations
from ..slots.parameter import Parameter, ParameterGroup
from ..slots.sublayer import AttentionSite


def base(ref: str) -> str:
    """The node of a reference: `encoder` of `encoder.layers`."""
    return ref.split(".")[0]


@dataclass(frozen=True)
class Edges:
    """Which nodes a node refers to: what it reads by field, the memories that its sub-layers name, whose table it shares."""

    reads: Mapping[str, str]
    memories: tuple[str, ...] = ()
    owner: str | None = None

    def all(self) -> Iterator[str]:
        yield from (base(ref) for ref in self.reads.values())
        yield from (base(ref) for ref in self.memories)
        if self.owner:
            yield self.owner


def edges_of(options: Any) -> Edges:
    """The edges that a node's options name."""
    named = {name: (annotation, getattr(options, name)) for name, annotation in field_annotations(type(options), NodeRef)}
    reads = {
        name: ref
        for name, (annotation, ref) in named.items()
        if ref is not None and annotation.role in ("input", "memory", "tokens")
    }
    owner = next((ref for annotation, ref in named.values() if annotation.role == "owner" and ref is not None), None)
    memories = dict.fromkeys(ref for _, ref in memory_references(layers_of(options)))
    return Edges(reads, tuple(memories), owner)


def layers_of(options: Any) -> tuple[Layer, ...]:
    """The layer pattern of a stack's options, nothing for those of other nodes."""
    return next((getattr(options, name) or () for name, _ in field_annotations(type(options), LayersField)), ())


def memory_references(layers: tuple[Any, ...], path: str = "layers") -> Iterator[tuple[str, str]]:
    """Every memory that a sub-layer of a pattern names, with the path of the option that names it."""
    for number, layer in enumerate(layers):
        if layer.layers:
            yield from memory_references(layer.layers, f"{path}.{number}.layers")
        for index, sublayer in enumerate(layer.sublayers or ()):
            for name, annotation in field_annotations(type(sublayer.options), NodeRef):
                ref = getattr(sublayer.options, name)
                if annotation.role == "memory" and ref is not None:
                    yield f"{path}.{number}.sublayers.{index}.{name}", ref


@dataclass(frozen=True)
class Node:
    """One node: its kind and options, its edges, what surrounds it, and the signal it gives."""

    name: str
    part: Component
    edges: Edges
    context: NodeContext
    signal: Signal

    @property
    def kind(self) -> NodeKind:
        return self.part.entry  # type: ignore[no-any-return]

    @property
    def options(self) -> Any:
        return self.part.options

    def parameter_groups(self) -> tuple[ParameterGroup, ...]:
        return self.kind.parameters(self.options, self.context)

    def parameters(self) -> Iterator[Parameter]:
        """Every parameter by its path below the node, expanded lazily."""
        for group in self.parameter_groups():
            yield from group.expanded()

    def count(self, trainable: bool = True) -> int:
        return sum(group.size(trainable) for group in self.parameter_groups())

    def sites(self) -> Iterator[tuple[str, AttentionSite]]:
        """Every attention site by its full name, expanded lazily."""
        for name, site in self.kind.sites(self.options, self.context):
            yield f"{self.name}.{name}", site


@dataclass(frozen=True)
class Graph:
    """A checked model graph. `nodes` are in topological order, `outputs` the names of what the model gives back."""

    name: str
    nodes: Mapping[str, Node]
    outputs: tuple[str, ...]

    def parameters(self, trainable: bool = True) -> int:
        """The exact number of trainable (or frozen) parameters, each shared one counted once."""
        return sum(node.count(trainable) for node in self.nodes.values())

    def inputs(self) -> list[Node]:
        return [node for node in self.nodes.values() if node.kind.input_rule is not None]

    def sites(self) -> Iterator[tuple[str, AttentionSite]]:
        for node in self.nodes.values():
            yield from node.sites()
