"""The model under test: with one backend, in one dtype, with its outputs."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from tfkit import Graph, Model
from tfkit.plugin.model_parts import InputRule

from .batch import Batch
from .expected import followers, shown_positions
from .rounding import Yardstick, trained_without_dropout
from .site_runs import Backward, backward
from .truth import Measured


@dataclass
class ModelUnderTest:
    """`model` is in evaluation mode; `baseline` is what its nodes give for `batch`; `requested` is the backend as a
    spec says it."""

    model: Model
    graph: Graph
    batch: Batch
    baseline: dict[str, Tensor]
    measured: Measured
    backend: str
    requested: object
    seed: int
    device: str
    dtype: torch.dtype
    limits: dict[str, int | None] = field(default_factory=dict)

    @property
    def yardstick(self) -> Yardstick:
        """How far apart two correct evaluations of the batch may be."""
        return self.measured.truth.yardstick

    @property
    def half(self) -> bool:
        """Whether the dtype has so few bits that rounding may hide a dependence; float64 decides then."""
        return self.dtype in (torch.bfloat16, torch.float16)

    @cached_property
    def backward(self) -> Backward:
        """The outputs, the gradients of the parameters, and what happened at every site on the way back: in training mode, in
        which gradients are used, with every dropout at 0."""
        return backward(trained_without_dropout(self.model), self.batch, self.measured.gradients.towards)

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
