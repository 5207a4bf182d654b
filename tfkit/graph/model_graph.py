"""The model graph: nodes in topological order, with their parameters, costs and attention sites. Nothing here imports torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from ..slots.layer import Layer, applications
from ..slots.lazy import load
from ..slots.node import NodeContext, NodeKind, Signal
from ..slots.options import Component, LayersField, NodeRef, field_annotations
from ..slots.parameter import Parameter, ParameterGroup
from ..slots.sublayer import AttentionSite


def base(ref: str) -> str:
    """The node of a reference: `encoder` of `encoder.layers`."""
    return ref.split(".")[0]


@dataclass(frozen=True)
class Edges:
    """The edges of a node: the nodes that it reads, by field (`input`, `inputs.0`); the memories of its sub-layers; the owner
    of a shared table."""

    reads: Mapping[str, str]
    memories: tuple[str, ...] = ()
    owner: str | None = None

    def all(self) -> Iterator[str]:
        yield from (base(ref) for ref in self.reads.values())
        yield from (base(ref) for ref in self.memories)
        if self.owner:
            yield self.owner


def edges_of(options: Any) -> Edges:
    """The edges in the options of a node."""
    named = {name: (annotation, getattr(options, name)) for name, annotation in field_annotations(type(options), NodeRef)}
    reads = {
        field: ref
        for name, (annotation, written) in named.items()
        if written is not None and annotation.role in ("input", "memory", "tokens")
        for field, ref in (
            [(f"{name}.{at}", ref) for at, ref in enumerate(written)] if isinstance(written, tuple) else [(name, written)]
        )
    }
    owner = next((ref for annotation, ref in named.values() if annotation.role == "owner" and ref is not None), None)
    memories = dict.fromkeys(ref for _, ref in memory_references(layers_of(options)))
    return Edges(reads, tuple(memories), owner)


def layers_of(options: Any) -> tuple[Layer, ...]:
    """The layer pattern in the options of a node.

    Args:
        options: the options of a node.

    Returns:
        The pattern of a stack; empty for other nodes.
    """
    return next((getattr(options, name) or () for name, _ in field_annotations(type(options), LayersField)), ())


def memory_references(layers: tuple[Any, ...], path: str = "layers") -> Iterator[tuple[str, str]]:
    """Every memory in the sub-layers of a pattern, with the path of its option."""
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
    """One node of the graph.

    Args:
        name: name of the node.
        part: its kind and options.
        edges: the nodes that it reads.
        context: the signals on these edges.
        signal: the symbolic shape of its output.
    """

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

    @cached_property
    def parameter_groups(self) -> tuple[ParameterGroup, ...]:
        """The parameters, grouped by repetition, not expanded."""
        return self.kind.parameters(self.options, self.context)

    def parameters(self) -> Iterator[Parameter]:
        """All parameters, lazily.

        Returns:
            Each parameter with its path below the node.
        """
        for group in self.parameter_groups:
            yield from group.expanded()

    def count(self, trainable: bool = True) -> int:
        """The number of parameters.

        Args:
            trainable: count the trainable parameters; False counts the frozen ones.

        Returns:
            The number of elements of these parameters.
        """
        return sum(group.size(trainable) for group in self.parameter_groups)

    def sublayers(self) -> int:
        """The number of sub-layers that a forward pass runs. A shared one counts each time; the layers of an RNN count as
        sub-layers, and any other node as one."""
        layers = layers_of(self.options)
        if not layers:
            return int(getattr(self.options, "num_layers", 1))
        return sum(times * len(layer.sublayers or ()) for times, layer in applications(layers))

    def sites(self) -> Iterator[tuple[str, AttentionSite]]:
        """All attention sites, lazily.

        Returns:
            The full name and the description of each site.
        """
        for name, site in self.kind.sites(self.options, self.context):
            yield f"{self.name}.{name}", site


@dataclass(frozen=True)
class Graph:
    """A checked model graph.

    Args:
        name: the name of the model.
        nodes: all nodes in topological order, by name.
        outputs: the nodes whose outputs the model returns, by name, and ports such as `encoder.layers`.
    """

    name: str
    nodes: Mapping[str, Node]
    outputs: tuple[str, ...]

    def parameters(self, trainable: bool = True) -> int:
        """The exact number of parameters. A shared parameter counts once.

        Args:
            trainable: count the trainable parameters; False counts the frozen ones.

        Returns:
            The number of elements of these parameters.
        """
        return sum(node.count(trainable) for node in self.nodes.values())

    def inputs(self) -> list[Node]:
        """The input nodes of the model.

        Returns:
            The nodes whose ids a caller gives.
        """
        return [node for node in self.nodes.values() if node.kind.input_rule is not None]

    def sites(self) -> Iterator[tuple[str, AttentionSite]]:
        """All attention sites, lazily.

        Returns:
            The full name (`encoder.3.self_attention`) and the description of each site.
        """
        for node in self.nodes.values():
            yield from node.sites()

    def _repr_html_(self) -> str:
        return load("tfkit.view.drawing.page:graph_html")(self)  # type: ignore[no-any-return]
