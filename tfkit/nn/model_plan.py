"""All that a model knows beside its modules."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..slots.node import InputRule
from .labels import LabelRule


@dataclass(frozen=True)
class Wire:
    """A node's edges: by field the nodes it reads, the memories its sub-layers name, and whose table it shares."""

    edges: Mapping[str, str]
    memories: tuple[str, ...] = ()
    owner: str | None = None


@dataclass(frozen=True)
class ModelPlan:
    """All that a model knows beside its modules: how the nodes are wired, what its inputs must be, what it gives back and how
    wide; for incremental decoding, which nodes follow each input, and why some input cannot be decoded step by step; of inputs
    with a table of positions, the `max_input_lengths`; of outputs that are logits, what their `labels` are."""

    name: str
    wires: Mapping[str, Wire]
    inputs: Mapping[str, InputRule]
    outputs: tuple[str, ...]
    widths: Mapping[str, int]
    followers: Mapping[str, frozenset[str]] = field(default_factory=dict)
    undecodable: Mapping[str, str] = field(default_factory=dict)
    max_input_lengths: Mapping[str, int] = field(default_factory=dict)
    labels: Mapping[str, LabelRule] = field(default_factory=dict)
