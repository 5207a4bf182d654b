"""The plan of a model: everything that it needs apart from its modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

from torch import Tensor

from ..errors import Diagnostic, InputError
from ..slots.node import AnyInputRule, ImageRule, InputRule


@dataclass(frozen=True)
class Wire:
    """The edges of a node.

    Args:
        edges: references to the nodes it reads, by field (`input`, or `inputs.0` in a list).
        memories: references that its sub-layers name.
        owner: the node whose embedding table it shares.
    """

    edges: Mapping[str, str]
    memories: tuple[str, ...] = ()
    owner: str | None = None


@dataclass(frozen=True)
class LabelRule:
    """The meaning of an output's labels.

    Args:
        kind: `next`: the next token of the input (decoder-only); `target`: the decoder's output (encoder-decoder); `here`: a
            token or class at the same position; `span`: the positions where a span starts and ends.
        tokens: the input node of the vocabulary.
        pad_id: a label that is ignored.
    """

    kind: Literal["next", "target", "here", "span"]
    tokens: str | None = None
    pad_id: int | None = None


@dataclass(frozen=True)
class ModelPlan:
    """The edges, inputs and outputs of a model.

    Args:
        name: name of the model.
        wires: edges of every node, in dependency order.
        inputs: rules of the ids, images or features of every input node.
        outputs: names of the output nodes, and ports such as `encoder.layers`.
        widths: width of every output node that has features or logits.
        followers: by input, the nodes that depend on it, itself included.
        undecodable: by input, why it cannot be decoded step by step.
        max_input_lengths: by input, its largest length, if a position table limits it.
        labels: by output of logits, the meaning of its labels.
        sequences: the outputs that have a vector for each position.
        refused: by argument of a call (`documents`, `positions`, `prefixes`) and input, why the input cannot have it.
    """

    name: str
    wires: Mapping[str, Wire]
    inputs: Mapping[str, AnyInputRule]
    outputs: tuple[str, ...]
    widths: Mapping[str, int]
    followers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    undecodable: Mapping[str, str] = field(default_factory=dict)
    max_input_lengths: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, LabelRule] = field(default_factory=dict)
    sequences: frozenset[str] = frozenset()
    refused: Mapping[tuple[str, str], str] = field(default_factory=dict)

    def label_rows(self, name: str, logits: Tensor) -> Tensor:
        """The logits of an output with the choices of a label in the last axis: (B, 2, L) for the (B, L, 2) of spans."""
        rule = self.labels.get(name)
        return logits.transpose(1, 2) if rule is not None and rule.kind == "span" else logits

    def token_rule(self, name: str) -> InputRule:
        """The rule of an input of token ids. Raises InputError for an input of images or features."""
        rule = self.inputs[name]
        if not isinstance(rule, InputRule):
            kind = "images" if isinstance(rule, ImageRule) else "features"
            raise InputError(Diagnostic("TFK073", f"`{name}` of `{self.name}` takes {kind}, not token ids"))
        return rule
