"""A whole model in plain torch, from its graph and its parameters alone."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import torch
from torch import Tensor

from tfkit import Graph

from .formulas import Unchecked, formula
from .values import Value, Weights


class Inputs(Protocol):
    """The inputs of a model, by node: token ids (B, L) or frames (B, L, F), which of their positions are real (B, L) bool,
    segments (B, L), and images (B, C, H, W)."""

    @property
    def ids(self) -> Mapping[str, Tensor]: ...

    @property
    def visible(self) -> Mapping[str, Tensor]: ...

    @property
    def segments(self) -> Mapping[str, Tensor]: ...

    @property
    def images(self) -> Mapping[str, Tensor]: ...


@dataclass
class Evaluation:
    """What the formulas give.

    Args:
        outputs: by node, and by port (`encoder.layers`, (B, L, layers + 1, M)); without unchecked nodes. Logits of positions
            that cannot be chosen are 0.
        visible: by node whose output is a sequence with padding, which positions are real, (B, L) bool.
        unchecked: by node, the part without a formula (`norm acme.part`), or the node that it reads and that is unchecked.
    """

    outputs: dict[str, Tensor] = field(default_factory=dict)
    visible: dict[str, Tensor] = field(default_factory=dict)
    unchecked: dict[str, str] = field(default_factory=dict)


def evaluate(graph: Graph, parameters: Mapping[str, Tensor], batch: Inputs, dtype: torch.dtype) -> Evaluation:
    """Evaluate a model by the formulas of its parts, without dropout.

    Args:
        graph: the graph of its spec.
        parameters: its parameters and buffers, by name as in `model.state_dict()`. Gradients reach those that require one.
        dtype: the dtype of all arithmetic: float64, or float32 for the rounding of a plain evaluation.

    Returns:
        The output of every node whose formula is known.
    """
    evaluation = Evaluation()
    values: dict[str, Value] = {}
    whole = Weights(parameters, "", dtype)
    for name, node in graph.nodes.items():
        blind = next((ref for ref in node.edges.all() if ref in evaluation.unchecked), None)
        if blind is not None and _reads_output(node, blind):
            evaluation.unchecked[name] = f"it reads `{blind}`, which is unchecked"
            continue
        try:
            function = formula("node", node.kind)
            value = function(node.options, node.context, _weights(whole, graph, node), _inputs(node, values, batch, dtype))
        except Unchecked as reason:
            evaluation.unchecked[name] = str(reason)
            continue
        if isinstance(value, Tensor):  # the formula of a plugin's node
            read = values.get(node.edges.reads.get("input", "").split(".")[0])
            value = Value(value, read.visible if read is not None and value.dim() == 3 else None)
        values[name] = value
        evaluation.outputs[name] = value.tensor
        if value.visible is not None:
            evaluation.visible[name] = value.visible
        if value.layers and f"{name}.layers" in graph.outputs:
            evaluation.outputs[f"{name}.layers"] = torch.stack(value.layers, 2)
    return evaluation


def _reads_output(node: Any, name: str) -> bool:
    """Whether a node reads the output of another, not only its table."""
    refs = (*node.edges.reads.values(), *node.edges.memories)
    return any(ref.split(".")[0] == name for ref in refs)


def _weights(whole: Weights, graph: Graph, node: Any) -> Weights:
    """The weights of a node. A shared table is that of the tokens node that owns it."""
    owner = node.edges.owner
    if owner is None:
        return whole.under(f"nodes.{node.name}")
    table = f"nodes.{owner}.embedding"
    return whole.under(f"nodes.{node.name}", {"embedding": table, "logits": table})


def _inputs(node: Any, values: Mapping[str, Value], batch: Inputs, dtype: torch.dtype) -> dict[str, Value]:
    """What a node reads: nodes by field, memories of sub-layers by the name of their node, the model's input as ""."""
    inputs = {fieldname: values[ref.split(".")[0]] for fieldname, ref in node.edges.reads.items()}
    inputs |= {ref: values[ref.split(".")[0]] for ref in node.edges.memories}
    if node.kind.input_rule is None:
        return inputs
    name = node.name
    if name in batch.images:
        return {**inputs, "": Value(batch.images[name].to(dtype))}
    tensor, visible = batch.ids[name], batch.visible.get(name)
    if tensor.is_floating_point():
        return {**inputs, "": Value(tensor.to(dtype), visible)}
    if name in batch.segments:
        inputs["segments"] = Value(tensor, visible, ids=batch.segments[name])
    return {**inputs, "": Value(tensor, visible, ids=tensor)}
