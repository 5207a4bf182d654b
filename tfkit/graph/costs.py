"""The costs of a forward pass, node by node, without building the model.

FLOPs count each multiply-add of a matrix product as two, as torch's FlopCounterMode does on the eager backend. Attention
(O(Q K H D)) and projections (O(L M H D)) are separate terms. FLOPs are exact. Activation memory is an estimate for the eager
backend: within 25 % of the measured memory that autograd keeps, outputs included.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..slots.cost import Cost, Sizes
from ..slots.layer import Layer
from ..slots.node import Signal
from ..slots.options import LayersField, field_annotations
from .model_graph import Graph, Node


@dataclass(frozen=True)
class Batch:
    """A batch.

    Args:
        size: number of rows B.
        lengths: length L of each input whose length varies, by node name.
    """

    size: int
    lengths: Mapping[str, int]

    def length(self, signal: Signal) -> int:
        """The number of positions of a signal; 1 for a pooled one."""
        if signal.length is None:
            return 1
        if isinstance(signal.length, int):
            return signal.length
        return -(-self.lengths[signal.length.removeprefix("L_")] // signal.stride)


def node_costs(graph: Graph, batch: Batch) -> dict[str, tuple[Cost, ...]]:
    """The cost terms of every node for one forward pass."""
    return {name: node.kind.costs(node.options, node.context, sizes_of(node, batch)) for name, node in graph.nodes.items()}


def layer_costs(node: Node, layers: tuple[Layer, ...], batch: Batch) -> tuple[Cost, ...]:
    """The cost terms of some layers of a stack. Those of all its layers sum to the costs of the stack."""
    options = node.options.model_copy(update={name: layers for name, _ in field_annotations(type(node.options), LayersField)})
    return node.kind.costs(options, node.context, sizes_of(node, batch))


def sizes_of(node: Node, batch: Batch) -> dict[str, Sizes]:
    """The sizes of a call of a node: its own under the empty name, and those with each memory."""
    signal = node.context.signals.get("input", node.signal)
    length = batch.length(signal)
    sizes = {"": Sizes(batch.size, length, length)}
    for ref, memory in node.context.memories.items():
        sizes[ref] = Sizes(batch.size, length, batch.length(memory))
    return sizes


def total_flops(costs: Mapping[str, tuple[Cost, ...]]) -> int:
    return sum(cost.flops for terms in costs.values() for cost in terms)


def total_elements(costs: Mapping[str, tuple[Cost, ...]]) -> int:
    return sum(cost.elements for terms in costs.values() for cost in terms)
