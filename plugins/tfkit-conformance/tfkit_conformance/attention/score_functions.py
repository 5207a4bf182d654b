"""A score function whose results the reference has, too: the dot product with the other sign."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from tfkit.plugin import AttentionInputs, accumulation, expand_heads


def negated_product(inputs: AttentionInputs) -> dict[str, Any]:
    """The score -scale q . k, computed as widely as a backend accumulates."""

    def score(query: Tensor, key: Tensor) -> Tensor:
        wide = accumulation(query.dtype)
        return -inputs.scale * query.to(wide) @ expand_heads(key.to(wide), query.shape[1]).mT

    return {"score": score}


def negated_product_of_wide_keys(inputs: AttentionInputs, more: int = 3) -> dict[str, Any]:
    """The same score of keys with `more` features before those that it reads, and after them. The keys want no gradient."""
    key = inputs.key.detach()
    other = key.new_full((*key.shape[:3], more), 3.0)
    score = negated_product(inputs)["score"]
    return {"score": lambda query, wide: score(query, wide[..., more:-more]), "key": torch.cat([other, key, other], -1)}


def without_score(inputs: AttentionInputs) -> AttentionInputs:
    """The same call without a score function."""
    if inputs.score is None:
        return inputs
    more = (inputs.key.shape[3] - inputs.query.shape[3]) // 2
    key = inputs.key[..., more:-more] if more else inputs.key
    return replace(inputs, score=None, scale=-inputs.scale, key=key)
