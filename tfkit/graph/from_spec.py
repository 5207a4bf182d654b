"""From a spec to its graph: order the nodes, propagate the widths along the edges, check every rule, report all errors."""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from ..errors import Diagnostic, SpecError
from ..slots.layer import depth
from ..slots.node import NodeContext, Signal
from ..slots.options import Component
from ..slots.placement import PlacementContext
from ..spec.model import ModelSpec
from .model_graph import Edges, Graph, Node, base, edges_of, layers_of, memory_references
from .rules import broken_rules


def graph_of(spec: ModelSpec) -> Graph:
    """Build the graph of a spec and check its rules, without torch.

    Args:
        spec: a resolved spec.

    Returns:
        The checked graph.

    Raises:
        SpecError: all broken rules, each located in the spec.
    """
    edges = {name: edges_of(part.options) for name, part in spec.nodes.items()}
    diagnostics: list[Diagnostic] = []
    nodes: dict[str, Node] = {}
    order = _order(edges)
    contexts = _placement_contexts(order, spec, edges)
    for name in order:
        node, node_diagnostics = _node(name, spec, edges, nodes, contexts.get(name))
        diagnostics += node_diagnostics
        if node is not None:
            nodes[name] = node
    graph = Graph(spec.name or "model", nodes, tuple(spec.outputs))
    if not diagnostics:
        diagnostics = list(broken_rules(graph, spec))
    if diagnostics:
        raise SpecError(
            sorted(dict.fromkeys(diagnostics), key=lambda diagnostic: (diagnostic.location is None, diagnostic.location or 0))
        )
    return graph


def _order(edges: Mapping[str, Edges]) -> list[str]:
    """A topological order, as close as possible to the written order. `tfkit.spec` rejects cycles before."""
    ordered: list[str] = []
    placed: set[str] = set()
    pending = list(edges)
    while pending:
        for name in pending:
            if all(ref in placed or ref not in edges for ref in edges[name].all()):
                ordered.append(name)
                placed.add(name)
                pending.remove(name)
                break
        else:
            raise SpecError(Diagnostic("TFK015", f"a cycle among {', '.join(pending)}"))
    return ordered


def _node(
    name: str, spec: ModelSpec, edges: Mapping[str, Edges], nodes: Mapping[str, Node], stack: PlacementContext | None
) -> tuple[Node | None, list[Diagnostic]]:
    part, node_edges = spec.nodes[name], edges[name]
    diagnostics: list[Diagnostic] = []
    signals: dict[str, Signal] = {}
    memories: dict[str, Signal] = {}
    for field, ref in node_edges.reads.items():
        signal = _signal(name, field, ref, spec, nodes, diagnostics)
        if signal is not None:
            signals[field] = signal
    for ref in (*node_edges.memories, *([node_edges.reads["memory"]] if "memory" in node_edges.reads else [])):
        if base(ref) in nodes:
            memories[ref] = nodes[base(ref)].signal
    if len(signals) < len(node_edges.reads) or any(base(ref) not in nodes for ref in node_edges.memories):
        return None, diagnostics
    targets = {field: spec.nodes[base(ref)].options for field, ref in node_edges.reads.items()}
    if node_edges.owner is not None:
        targets["share"] = spec.nodes[root(node_edges.owner, edges)].options
    context = NodeContext(name, signals, memories, targets, stack)
    for path, rule, fix in part.entry.rules(part.options, context):
        diagnostics.append(spec.diagnostic("TFK040", f"nodes.{name}.{path}", rule, fix))
    diagnostics += _edge_diagnostics(name, part, node_edges, signals, memories, spec)
    # A node with a broken rule still has an output signal, so that the rules of later nodes are checked too.
    return Node(name, part, replace(node_edges, owner=root(node_edges.owner, edges) if node_edges.owner else None), context,
                part.entry.output(part.options, context)), diagnostics  # fmt: skip


def _edge_diagnostics(
    name: str, part: Component, edges: Edges, signals: Mapping[str, Signal], memories: Mapping[str, Signal], spec: ModelSpec
) -> Iterator[Diagnostic]:
    """Errors of edges with a signal that the reader cannot use. Stacks need sequences; few nodes read the port `layers`."""
    read = [(f"nodes.{name}.{field}", edges.reads[field], signal) for field, signal in signals.items() if field != "tokens"]
    for path, ref, signal in read:
        if signal.depth and not part.entry.takes_layers:
            rule = f"`{ref}` is the {signal.depth} layers of `{base(ref)}`, and a {part.kind} reads one output"
            yield spec.diagnostic("TFK042", path, rule, f"write `{base(ref)}`, or put a layer_mix in between")
    layers = layers_of(part.options)
    if not layers:
        return
    named = [(f"nodes.{name}.{path}", ref, memories[ref]) for path, ref in memory_references(layers) if ref in memories]
    for path, ref, signal in named:
        if ref != base(ref):
            rule = f"`{ref}` is the {signal.depth} layers of `{base(ref)}`, and a sub-layer reads one output"
            yield spec.diagnostic("TFK042", path, rule, f"write `{base(ref)}`, or put a layer_mix in between")
    for path, ref, signal in [*read, *named]:
        if signal.length is None:
            rule = f"`{ref}` is one vector per row, {_axes(signal)}; a sequence is needed"
            yield spec.diagnostic("TFK041", path, rule, "read a node whose output is a sequence")


def _signal(
    name: str, field: str, ref: str, spec: ModelSpec, nodes: Mapping[str, Node], diagnostics: list[Diagnostic]
) -> Signal | None:
    node = nodes.get(base(ref))
    if node is None:
        return None
    port = ref.partition(".")[2]
    if not node.signal.has_width:
        rule = f"`{base(ref)}` is {_axes(node.signal)}, one number for each pair of rows, and no node reads that"
        diagnostics.append(spec.diagnostic("TFK041", f"nodes.{name}.{field}", rule, "read one of the nodes that it compares"))
        return None
    if not port:
        return replace(node.signal, depth=0, layers=None)
    if port in node.kind.ports:
        return node.signal.layers or node.signal
    near = difflib.get_close_matches(port, node.kind.ports, 1)
    fix = f"did you mean `{base(ref)}.{near[0]}`?" if near else f"ports: {', '.join(node.kind.ports) or 'none'}"
    rule = f"`{base(ref)}` is a {node.part.kind} and has no port `{port}`"
    diagnostics.append(spec.diagnostic("TFK042", f"nodes.{name}.{field}", rule, fix))
    return None


def _axes(signal: Signal) -> str:
    return f"({', '.join(map(str, signal.axes))})"


def root(name: str, edges: Mapping[str, Edges]) -> str:
    """The node at the end of a chain of `share`: the owner of the table."""
    seen: set[str] = set()
    while (owner := edges[name].owner) is not None and name not in seen:
        seen.add(name)
        name = owner
    return name


def _placement_contexts(order: Sequence[str], spec: ModelSpec, edges: Mapping[str, Edges]) -> dict[str, PlacementContext]:
    """The role of each stack in the model: it reads a memory, it is the memory of another stack, or neither. `order` is
    topological."""
    depths = {name: depth(layers) for name, part in spec.nodes.items() if (layers := layers_of(part.options))}
    upstream: dict[str, tuple[str, ...]] = {}  # the nearest stacks at or upstream of each node
    for name in order:
        above = (up for ref in edges[name].reads.values() for up in upstream.get(base(ref), ()))
        upstream[name] = (name,) if name in depths else tuple(dict.fromkeys(above))
    sources = {
        name: [up for ref in _memories(node_edges) for up in upstream.get(base(ref), ())] for name, node_edges in edges.items()
    }
    readers: dict[str, str] = {}
    for name, stacks in sources.items():
        for up in stacks:
            readers.setdefault(up, name)
    contexts = {}
    for name, num_layers in depths.items():
        if any(_memories(edges[name])):
            contexts[name] = PlacementContext("decoder", num_layers, max((depths[up] for up in sources[name]), default=0))
        elif name in readers:
            contexts[name] = PlacementContext("encoder", num_layers, depths.get(readers[name], 0))
        else:
            contexts[name] = PlacementContext("decoder_only" if spec.nodes[name].options.causal else "encoder_only", num_layers)
    return contexts


def _memories(edges: Edges) -> Iterator[str]:
    if "memory" in edges.reads:
        yield edges.reads["memory"]
    yield from edges.memories
