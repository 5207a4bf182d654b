"""The plan of a model from its graph: edges, rules of inputs and labels, and which inputs can be decoded step by step."""

from __future__ import annotations

from collections.abc import Mapping

from torch import nn

from ..graph import Graph, max_input_lengths
from ..graph.model_graph import base
from ..nn.heads import Classify
from ..nn.labels import label_rule
from ..nn.model_plan import LabelRule, ModelPlan, Wire
from ..nn.span_logits import SpanLogits
from ..nn.tokens import TokenLogits
from ..slots.node import AnyInputRule, InputRule


def plan_of(graph: Graph, modules: Mapping[str, nn.Module]) -> ModelPlan:
    wires = {name: Wire(node.edges.reads, node.edges.memories, node.edges.owner) for name, node in graph.nodes.items()}
    inputs = {
        node.name: node.kind.input_rule(node.options, node.context)
        for node in graph.inputs()
        if node.kind.input_rule is not None
    }
    followers = {name: _followers(graph, name) for name in inputs}
    undecodable = {}
    for name, following in followers.items():
        reason = _undecodable(graph, following) if isinstance(inputs[name], InputRule) else "it has no token ids"
        if reason:
            undecodable[name] = reason
    signals = {name: graph.nodes[name].signal for name in graph.outputs if name in graph.nodes}
    widths = {name: signal.width for name, signal in signals.items() if signal.has_width}
    limits = {name: limit for name, limit in max_input_lengths(graph).items() if limit is not None}
    labels = {
        name: _labels(graph, name, module, inputs, undecodable)
        for name, module in modules.items()
        if name in graph.outputs and isinstance(module, (TokenLogits, Classify, SpanLogits))
    }
    sequences = frozenset(name for name, signal in signals.items() if signal.length is not None)
    return ModelPlan(graph.name, wires, inputs, graph.outputs, widths, followers, undecodable, limits, labels, sequences)


def _labels(
    graph: Graph, name: str, module: nn.Module, inputs: Mapping[str, AnyInputRule], undecodable: Mapping[str, str]
) -> LabelRule:
    """The meaning of the labels of an output of logits. Classes have no vocabulary, even if the node follows tokens."""
    if isinstance(module, SpanLogits):
        return LabelRule("span")
    tokens = graph.nodes[name].signal.tokens if isinstance(module, TokenLogits) else None
    rule = inputs.get(tokens or "")
    assert rule is None or isinstance(rule, InputRule), "logits follow token ids"
    return label_rule(rule, tokens, tokens not in undecodable, len(inputs) == 1)


def _followers(graph: Graph, name: str) -> frozenset[str]:
    """The nodes whose output depends on an input node, itself included."""
    found = {name}
    for other, node in graph.nodes.items():
        if found & {base(ref) for ref in (*node.edges.reads.values(), *node.edges.memories)}:
            found.add(other)
    return frozenset(found)


def _undecodable(graph: Graph, following: frozenset[str]) -> str | None:
    for name in following:
        node = graph.nodes[name]
        if not node.kind.stepwise(node.options):
            return f"`{name}` ({node.part.kind}) needs the whole sequence"
        for ref in (node.edges.reads.get("memory"), *node.edges.memories):
            if ref is not None and base(ref) in following:
                return f"`{name}` reads `{ref}` as a memory, which would grow"
    return None
