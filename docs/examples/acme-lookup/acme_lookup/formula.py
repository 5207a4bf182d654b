"""The equation of the node in plain torch, which `tfkit verify` compares whole models with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tfkit.plugin.model_parts import NodeContext

from . import LookupOptions


def lookup(options: LookupOptions, context: NodeContext, weights: Mapping[str, Tensor], inputs: Mapping[str, Any]) -> Tensor:
    """x + softmax(Q K^T / sqrt(D), padding hidden) V W_O, head by head, (B, Q, M)."""
    x, memory = inputs["input"].tensor, inputs["memory"].tensor

    def heads(name: str, given: Tensor) -> Tensor:
        made = given @ weights[f"lookup.{name}.weight"].mT + weights[f"lookup.{name}.bias"]
        return made.unflatten(2, (options.num_heads, -1)).transpose(1, 2)  # (B, H, L, D)

    query, key, value = heads("query", x), heads("key", memory), heads("value", memory)
    scores = query @ key.mT / query.shape[-1] ** 0.5
    scores = scores.masked_fill(~inputs["memory"].shown()[:, None, None], -torch.inf)
    found = (torch.softmax(scores, -1) @ value).transpose(1, 2).flatten(2)
    return x + found @ weights["lookup.output.weight"].mT + weights["lookup.output.bias"]
