"""The graphs that CTranslate2 runs: an encoder-decoder, a causal language model, or an encoder."""

from __future__ import annotations

from dataclasses import dataclass

from ...graph import Graph
from ...graph.model_graph import Node

KINDS = ("tokens", "stack", "token_logits", "pool", "dense")
"""The node kinds that have a counterpart."""


@dataclass(frozen=True)
class Shape:
    """The nodes of a model by their role; None for a role that it does not have.

    Args:
        source: the tokens of the encoder.
        encoder: a stack that is not causal.
        target: the tokens of the decoder.
        decoder: a causal stack, with or without an encoder.
        logits: the logits of the decoder.
        pooler: of an encoder without decoder: the dense node after its first vector.
    """

    source: Node | None = None
    encoder: Node | None = None
    target: Node | None = None
    decoder: Node | None = None
    logits: Node | None = None
    pooler: Node | None = None


def shape_of(graph: Graph) -> Shape | None:
    """The roles of the nodes, or None for another graph."""
    nodes = graph.nodes
    by_kind = {kind: [node for node in nodes.values() if node.part.kind == kind] for kind in KINDS}
    if sum(map(len, by_kind.values())) != len(nodes):
        return None
    stacks, logits = by_kind["stack"], by_kind["token_logits"]
    counts = tuple(len(by_kind[kind]) for kind in KINDS)
    if counts == (2, 2, 1, 0, 0):
        decoders = [node for node in stacks if node.options.memory in nodes]
        if len(decoders) != 1:
            return None
        decoder, encoder = decoders[0], nodes[decoders[0].options.memory]
        ends = _reads(logits[0], decoder) and graph.outputs == (logits[0].name,)
        found = Shape(_input(graph, encoder), encoder, _input(graph, decoder), decoder, logits[0])
        return found if ends and encoder in stacks and found.source and found.target and found.source != found.target else None
    if counts == (1, 1, 1, 0, 0):
        decoder = stacks[0]
        whole = decoder.options.causal and _reads(logits[0], decoder) and graph.outputs == (logits[0].name,)
        return Shape(target=_input(graph, decoder), decoder=decoder, logits=logits[0]) if whole else None
    if counts in ((1, 1, 0, 0, 0), (1, 1, 0, 1, 1)) and not stacks[0].options.causal:
        encoder, pooler = stacks[0], next(iter(by_kind["dense"]), None)
        if pooler is not None and not (_reads(by_kind["pool"][0], encoder) and _reads(pooler, by_kind["pool"][0])):
            return None
        allowed = {encoder.name} | ({pooler.name} if pooler else set())
        return Shape(_input(graph, encoder), encoder, pooler=pooler) if set(graph.outputs) <= allowed else None
    return None


def _reads(node: Node, other: Node) -> bool:
    return bool(node.options.input == other.name)


def _input(graph: Graph, stack: Node) -> Node | None:
    """The tokens that a stack reads."""
    node = graph.nodes.get(stack.options.input)
    return node if node is not None and node.part.kind == "tokens" else None
