"""Which inputs of a model cannot have documents, positions of their own, or prefixes, and why."""

from __future__ import annotations

from collections.abc import Iterator

from ..slots.layer import leaves
from ..slots.node import InputRule
from ..slots.options import Component
from .model_graph import Graph, Node, base, layers_of


def refused_arguments(graph: Graph) -> dict[tuple[str, str], str]:
    """By argument of a call (`documents`, `positions`, `prefixes`) and input of token ids, why the input cannot have it."""
    rules = {node.name: node.kind.input_rule(node.options, node.context) for node in graph.inputs() if node.kind.input_rule}
    return {
        (argument, name): reason
        for name, rule in rules.items()
        if isinstance(rule, InputRule)
        for argument, reason in _reasons(graph, name).items()
        if reason
    }


def followers(graph: Graph, name: str) -> frozenset[str]:
    """The nodes whose output depends on an input node, itself included."""
    following = {name}
    for other, node in graph.nodes.items():
        if following & {base(ref) for ref in (*node.edges.reads.values(), *node.edges.memories)}:
            following.add(other)
    return frozenset(following)


def _reasons(graph: Graph, name: str) -> dict[str, str | None]:
    """Why the rows of an input cannot hold several documents, have positions of their own, or start with a prefix."""
    following = followers(graph, name)
    nodes = [node for node in graph.nodes.values() if node.name in following]
    same = [node for node in nodes if node.signal.length == graph.nodes[name].signal.length]
    schemes = [(node, scheme, cross) for node in nodes for scheme, cross in _schemes(node)]
    positions = next(
        (
            f"the position scheme `{scheme.kind}` of `{node.name}` "
            + ("acts on cross-attention" if cross else "does not take positions by row (`row_positions`)")
            for node, scheme, cross in schemes
            if cross or not scheme.entry.row_positions
        ),
        None,
    )
    mixing = next((node for node in nodes if not node.kind.attends_only(node.options, node.context)), None)
    documents = f"`{mixing.name}` ({mixing.part.kind}) mixes tokens by more than attention" if mixing else positions
    causal = [node for node in same if layers_of(node.options) and node.options.causal]
    windowed = [node.name for node in causal if any("window" in site.mask_terms for _, site in node.sites())]
    return {
        "documents": documents,
        "positions": positions or (None if any(node in same for node, _, _ in schemes) else "no position scheme reads them"),
        "prefixes": f"`{windowed[0]}` has attention windows" if windowed else None if causal else "no causal stack reads it",
    }


def _schemes(node: Node) -> Iterator[tuple[Component, bool]]:
    """The position schemes that act in a node, and whether they act on cross-attention."""
    of_node = getattr(node.options, "position", None)
    written = [] if of_node is None else [(of_node, False)]
    for leaf in leaves(layers_of(node.options)):
        written.append((leaf.layer.position, False))
        parts = (part.options for part in leaf.layer.sublayers or () if part.entry.reads == "memory")
        written += [(options.position, True) for options in parts if getattr(options, "position", None) is not None]
    return ((scheme, cross) for scheme, cross in written if scheme.entry.acts)
