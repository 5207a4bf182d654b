"""What a forward pass costs, node by node, without building anything.

FLOPs count the multiply-adds of matrix products as two each, as torch's FlopCounterMode does on the eager backend. The
attention terms (O(Q K H D)) and the projections (O(L M H D)) are named apart. FLOPs are exact; activation memory is an
estimate, within a quarter of what autograd was measured to keep, outputs included, for the plain (eager) implementation.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ..slots.cost import Cost, Sizes
from .model_graph import Graph, Node


@dataclass(frozen=True)
class Batch:
    """A batch of `size` rows; `lengths` gives the length of each input, by node name."""

    size: int
    lengths: Mapping[str, int]

    def length(self, axis: str | None) -> int:
        """The number of positions along an axis (`L_source`), 1 for a pooled signal."""
        return self.lengths[axis.removeprefix("L_")] if axis else 1


def node_costs(graph: Graph, batch: Batch) -> dict[str, tuple[Cost, ...]]:
    """The cost terms of every node for one forward pass."""
    return {name: node.kind.costs(node.options, node.context, _sizes(node, batch)) for name, node in graph.nodes.items()}


def _sizes(node: Node, batch: Batch) -> dict[str, Sizes]:
    signal = node.context.signals.get("input", node.signal)
    own = batch.length(signal.length)
    sizes = {"": Sizes(batch.size, own, own)}
    for ref, memory in node.context.memories.items():
        sizes[ref] = Sizes(batch.size, own, batch.length(memory.length))
    return sizes


def total_flops(costs: Mapping[str, tuple[Cost, ...]]) -> int:
    return sum(cost.flops for terms in costs.values() for cost in terms)


def total_elements(costs: Mapping[str, tuple[Cost, ...]]) -> int:
    return sum(cost.elements for terms in costs.values() for cost in terms)
