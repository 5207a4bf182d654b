"""The plain equation that `tfkit verify` checks the node against."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tfkit.plugin.model_parts import NodeContext

from . import GateOptions


def gate(options: GateOptions, context: NodeContext, weights: Mapping[str, Tensor], inputs: Mapping[str, Any]) -> Tensor:
    """x sigmoid(W x + b)"""
    x: Tensor = inputs["input"].tensor
    return x / (1 + torch.exp(-(x @ weights["gate.weight"].mT + weights["gate.bias"])))
