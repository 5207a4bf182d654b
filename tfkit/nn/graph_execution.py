"""Runs the nodes of a model in dependency order."""

from __future__ import annotations

from collections.abc import Container, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from .model_plan import ModelPlan
from .outputs import Outputs
from .runtime.context import ForwardContext
from .runtime.node_output import NodeOutput


class GraphExecutor:
    """The nodes of a model and the plan of their edges."""

    def __init__(self, plan: ModelPlan, nodes: nn.ModuleDict) -> None:
        self.plan, self.nodes = plan, nodes

    def run(self, names: Container[str], context: ForwardContext, known: Mapping[str, NodeOutput]) -> dict[str, NodeOutput]:
        """Run the nodes `names` after the nodes whose outputs are `known`; returns the outputs of both."""
        outputs = dict(known)
        for name in self.plan.wires:
            if name in names:
                outputs[name] = self._call(name, context, outputs)
        return outputs

    def outputs(self, node_outputs: Mapping[str, NodeOutput], context: ForwardContext) -> Outputs:
        """The outputs of the model that were computed, with the attention weights that the caller wants."""
        outputs = Outputs(
            {ref: _tensor(ref, node_outputs[_node(ref)]) for ref in self.plan.outputs if _node(ref) in node_outputs}
        )
        if context.wanted:
            outputs["weights"] = context.weights
        return outputs

    def reads(self, name: str) -> set[str]:
        """The nodes whose outputs a node reads."""
        wire = self.plan.wires[name]
        return {_node(ref) for ref in (*wire.edges.values(), *wire.memories)}

    def _call(self, name: str, context: ForwardContext, outputs: Mapping[str, NodeOutput]) -> NodeOutput:
        wire = self.plan.wires[name]
        arguments: dict[str, Any] = {}
        for edge, ref in wire.edges.items():
            field, _, item = edge.partition(".")
            output = outputs[_node(ref)]
            arguments[field] = (*arguments.get(field, ()), output) if item else output
        if wire.memories:
            arguments["memories"] = {ref: outputs[_node(ref)] for ref in wire.memories}
        if wire.owner is not None:
            arguments["table"] = self.nodes[wire.owner].embedding
        return self.nodes[name](context, **arguments)  # type: ignore[no-any-return]


def _tensor(ref: str, output: NodeOutput) -> Tensor:
    """The output of a node; of its port `layers`, (layers + 1, B, L, M): the input of the first layer, then every output."""
    if ref == _node(ref):
        return output.tensor
    assert output.layers is not None
    return torch.stack(output.layers)


def _node(ref: str) -> str:
    """The node of a reference `node` or `node.port`."""
    return ref.split(".")[0]
