"""What a property of a whole model is checked on: the model with one backend, in one dtype, and what it gives."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from ...graph import Graph
from ...nn.model import Model
from .batch import Batch
from .described import followers, tokens_of
from .rounding import Yardstick


@dataclass
class Subject:
    """`model` is in evaluation mode; `baseline` is what its nodes give for `batch`; `wish` is the backend as a spec says it."""

    model: Model
    graph: Graph
    batch: Batch
    baseline: dict[str, Tensor]
    stick: Yardstick
    backend: str
    wish: object
    seed: int
    device: str
    dtype: torch.dtype
    limits: dict[str, int | None] = field(default_factory=dict)

    def generator(self, number: int = 0) -> torch.Generator:
        return torch.Generator().manual_seed(self.seed + 1000 + number)

    def shown(self, batch: Batch | None = None) -> dict[str, Tensor]:
        """By node, which of its positions are real; nothing for pooled nodes, which are compared as a whole."""
        visible = (batch or self.batch).visible
        by_node = {name: tokens_of(self.graph, name) for name in self.graph.nodes}
        return {name: visible[tokens] for name, tokens in by_node.items() if tokens is not None}

    def following(self, tokens: str) -> set[str]:
        return followers(self.graph, tokens)

    def pad(self, tokens: str) -> int:
        return self.model.plan.inputs[tokens].pad_id or 0
