"""The plan of a model: everything that it needs apart from its modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..slots.node import InputRule
from .labels import LabelRule


@dataclass(frozen=True)
class Wire:
    """The edges of a node.

    Args:
        edges: references to the nodes it reads, by field.
        memories: references that its sub-layers name.
        owner: the node whose embedding table it shares.
    """

    edges: Mapping[str, str]
    memories: tuple[str, ...] = ()
    owner: str | None = None


@dataclass(frozen=True)
class ModelPlan:
    """The edges, inputs and outputs of a model.

    Args:
        name: name of the model.
        wires: edges of every node, in dependency order.
        inputs: rules of the ids of every input node.
        outputs: names of the output nodes.
        widths: width of every output.
        followers: by input, the nodes that depend on it, itself included.
        undecodable: by input, why it cannot be decoded step by step.
        max_input_lengths: by input, its largest length, if a position table limits it.
        labels: by output of logits, the meaning of its labels.
    """

    name: str
    wires: Mapping[str, Wire]
    inputs: Mapping[str, InputRule]
    outputs: tuple[str, ...]
    widths: Mapping[str, int]
    followers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    undecodable: Mapping[str, str] = field(default_factory=dict)
    max_input_lengths: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, LabelRule] = field(default_factory=dict)
