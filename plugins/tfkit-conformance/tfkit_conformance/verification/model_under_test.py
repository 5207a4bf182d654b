"""The model under test: with one backend, in one dtype, with its outputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from tfkit import Graph, Model
from tfkit.plugin.model_parts import InputRule

from .batch import Batch
from .expected import followers, node_of, tokens_of
from .gradient_yardstick import GradientYardstick
from .rounding import Yardstick
from .site_runs import Gradients, SiteRuns, backward


@dataclass
class ModelUnderTest:
    """`model` is in evaluation mode; `baseline` is what its nodes give for `batch`; `requested` is the backend as a
    spec says it."""

    model: Model
    graph: Graph
    batch: Batch
    baseline: dict[str, Tensor]
    stick: Yardstick
    backend: str
    requested: object
    seed: int
    device: str
    dtype: torch.dtype
    slopes: GradientYardstick
    limits: dict[str, int | None] = field(default_factory=dict)

    @cached_property
    def backward(self) -> tuple[Gradients, SiteRuns]:
        """The gradients of the parameters, and what happened at every site on the way back."""
        return backward(self.model, self.batch, self.slopes.towards)

    def generator(self, number: int = 0) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed + 1000 + number)

    def shown(self, batch: Batch | None = None) -> dict[str, Tensor]:
        """By node, which of its positions are real; nothing for pooled nodes, which are compared as a whole."""
        return shown_positions(self.graph, batch or self.batch)

    def following(self, tokens: str) -> set[str]:
        return followers(self.graph, tokens)

    def pad(self, tokens: str) -> int:
        rule = self.model.plan.inputs[tokens]
        return rule.pad_id or 0 if isinstance(rule, InputRule) else 0


def shown_positions(graph: Graph, batch: Batch) -> dict[str, Tensor]:
    """By node and output, which of its positions in a batch are real; nothing for pooled nodes."""
    by_node = {name: tokens_of(graph, node_of(name)) for name in (*graph.nodes, *graph.outputs)}
    strides = {name: graph.nodes[node_of(name)].signal.stride for name in by_node}
    return {name: batch.visible[tokens][:, :: strides[name]] for name, tokens in by_node.items() if tokens is not None}
