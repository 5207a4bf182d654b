"""What the spec says about each part of a built model: modules are checked against the spec, not against themselves."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from tfkit import Graph
from tfkit.inspection import Node, field_annotations, layers_of, sequence
from tfkit.plugin import Component
from tfkit.plugin.model_parts import AttentionSite, Constants, Layer, NodeRef

from .batch import Batch


@dataclass(frozen=True)
class ExpectedLayer:
    """One application of a layer: `skip` and, by sub-layer, `branch` are the residual's factors."""

    stack: str
    index: int
    layer: Layer
    skip: float
    branch: dict[str, float]

    @property
    def placement(self) -> Component:
        assert self.layer.placement is not None
        return self.layer.placement

    @property
    def sublayers(self) -> dict[str, Component]:
        return {part.options.name: part for part in self.layer.sublayers or ()}


@dataclass(frozen=True)
class ExpectedSite:
    """One attention site: its options, the memory it reads (None: its own sequence) and the position scheme acting there."""

    name: str
    site: AttentionSite
    options: Any
    causal: bool
    tokens: str | None
    memory: str | None
    scheme: Component | None

    @property
    def scale(self) -> float:
        if self.options.score.kind != "dot":
            return 1.0  # the scale is that of a dot product
        scale = self.options.scale
        return scale if isinstance(scale, float) else float(self.site.head_dim) ** -0.5

    @property
    def window(self) -> tuple[int | None, int | None] | None:
        window = self.options.window
        return (window - 1, 0) if isinstance(window, int) else window


def node_of(reference: str) -> str:
    """The node of a reference: `encoder` of `encoder.layers`."""
    return reference.split(".")[0]


def stacks(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes.values() if layers_of(node.options)]


def expected_layers(graph: Graph) -> Iterator[ExpectedLayer]:
    """Every application of every layer, in the order a token meets them."""
    for node in stacks(graph):
        for index, (_, layer) in enumerate(sequence(layers_of(node.options))):
            placement = layer.placement
            assert placement is not None
            context = node.context.stack
            constants = placement.entry.constants(placement.options, context) if context else Constants()
            branch = {part.options.name: constants.branch * part.options.residual_scale for part in layer.sublayers or ()}
            yield ExpectedLayer(node.name, index, layer, constants.skip, branch)


def expected_sites(graph: Graph) -> dict[str, ExpectedSite]:
    """Every attention site by name."""
    sites = dict(graph.sites())
    expected_by_site = {}
    for expected in expected_layers(graph):
        node = graph.nodes[expected.stack]
        for name, part in expected.sublayers.items():
            full = f"{expected.stack}.{expected.index}.{name}"
            if full not in sites:
                continue
            memory = memory_of(node, part)
            scheme = expected.layer.position if memory is None else part.options.position
            acts = scheme.entry.acts & {"queries_keys", "scores"}
            causal = bool(node.options.causal) and memory is None
            expected_by_site[full] = ExpectedSite(
                full, sites[full], part.options, causal, tokens_of(graph, node.name), memory, scheme if acts else None
            )
    return expected_by_site


def memory_of(node: Node, sublayer: Component) -> str | None:
    """The node that a sub-layer reads as memory, None where it reads its own sequence."""
    if sublayer.entry.reads != "memory":
        return None
    fields = [name for name, annotation in field_annotations(type(sublayer.options), NodeRef) if annotation.role == "memory"]
    named = next((getattr(sublayer.options, name) for name in fields if getattr(sublayer.options, name) is not None), None)
    return node_of(named or node.options.memory)


def memories(graph: Graph, stack: str) -> set[str]:
    """Every node that a stack reads as a memory."""
    node = graph.nodes[stack]
    read = {memory_of(node, part) for _, layer in sequence(layers_of(node.options)) for part in layer.sublayers or ()}
    return {name for name in read if name is not None}


def tokens_of(graph: Graph, node: str) -> str | None:
    """The input whose positions a node's output has, None once it is pooled, and where an image fixes their number."""
    length = graph.nodes[node].signal.length
    return length.removeprefix("L_") if isinstance(length, str) else None


def mixes_positions(graph: Graph, name: str) -> bool:
    """Whether a sequence is computed from its input's positions other than by attention: a convolution."""
    node = graph.nodes[name]
    if node.kind.input_rule is not None:
        return False
    mixes = not layers_of(node.options) and not node.kind.stepwise(node.options)
    return mixes or mixes_positions(graph, node_of(node.edges.reads["input"]))


def is_causal(node: Node) -> bool:
    """Whether an output of the node depends on earlier positions, and on no later one."""
    return node.kind.mixes_positions and node.kind.stepwise(node.options)


def stepwise_chain(graph: Graph, tokens: str) -> list[str]:
    """The nodes whose output at one position needs no later position of an input: from its tokens on, while every node is
    stepwise and no memory follows from that same input."""
    chain: list[str] = []
    follow = followers(graph, tokens)
    for name, node in graph.nodes.items():
        source = node.edges.reads.get("input")
        begins = name == tokens
        if not begins and (source is None or node_of(source) not in chain):
            continue
        read = {
            node_of(ref)
            for ref in (*([node.edges.reads["memory"]] if "memory" in node.edges.reads else []), *node.edges.memories)
        }
        if node.kind.stepwise(node.options) and not read & follow:
            chain.append(name)
    return chain


def followers(graph: Graph, tokens: str) -> set[str]:
    """The nodes whose output depends on an input, itself included."""
    nodes = {tokens}
    for name, node in graph.nodes.items():
        if nodes & {node_of(ref) for ref in (*node.edges.reads.values(), *node.edges.memories)}:
            nodes.add(name)
    return nodes


def schemes_at(graph: Graph, name: str) -> list[Component]:
    """The position schemes between an input and a node of its sequence, in embeddings and in attention."""
    schemes: list[Component] = []
    while True:
        node = graph.nodes[name]
        if node.kind.input_rule is not None:
            position = getattr(node.options, "position", None)
            return schemes + ([position] if position is not None and position.entry.acts else [])
        schemes += [layer.position for _, layer in sequence(layers_of(node.options)) if layer.position.entry.acts]
        name = node_of(node.edges.reads["input"])


def shown_positions(graph: Graph, batch: Batch) -> dict[str, Tensor]:
    """By node and output, which of its positions in a batch are real; nothing for pooled nodes."""
    by_node = {name: tokens_of(graph, node_of(name)) for name in (*graph.nodes, *graph.outputs)}
    strides = {name: graph.nodes[node_of(name)].signal.stride for name in by_node}
    return {name: batch.visible[tokens][:, :: strides[name]] for name, tokens in by_node.items() if tokens is not None}
