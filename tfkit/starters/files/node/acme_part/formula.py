"""The equation of the node in plain torch, which `tfkit verify` compares it with. It shares no code with the module."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tfkit.plugin.model_parts import NodeContext

from . import GateOptions


def gate(options: GateOptions, context: NodeContext, weights: Mapping[str, Tensor], inputs: Mapping[str, Any]) -> Tensor:
    """x sigmoid(W x + b), (B, L, M) or (B, M)."""
    x = inputs["input"].tensor
    return x * torch.sigmoid(x @ weights["gate.weight"].mT + weights["gate.bias"])
