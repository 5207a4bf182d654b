"""The formulas of the built-in scores: a query (B, H, Q, D) and a key (B, H, K, E) to the scores (B, H, Q, K)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor


def dot(options: Any, weights: Mapping[str, Tensor], query: Tensor, key: Tensor) -> Tensor:
    """q . k, Vaswani et al. 2017, equation 1 (https://arxiv.org/abs/1706.03762); attention multiplies it by its scale."""
    return query @ key.mT


def general(options: Any, weights: Mapping[str, Tensor], query: Tensor, key: Tensor) -> Tensor:
    """q . W k, Luong et al. 2015, equation 8 (https://arxiv.org/abs/1508.04025)."""
    return (query @ weights["weight"]) @ key.mT


def additive(options: Any, weights: Mapping[str, Tensor], query: Tensor, key: Tensor) -> Tensor:
    """v . tanh(W q + U k), Bahdanau et al. 2014, appendix A.1.2 (https://arxiv.org/abs/1409.0473)."""
    of_query = (query @ weights["query.weight"].mT)[..., :, None, :]
    of_key = (key @ weights["key.weight"].mT)[..., None, :, :]
    return (torch.tanh(of_query + of_key) @ weights["out.weight"].mT)[..., 0]


def concat(options: Any, weights: Mapping[str, Tensor], query: Tensor, key: Tensor) -> Tensor:
    """v . tanh(W [q; k]), Luong et al. 2015, equation 8 (https://arxiv.org/abs/1508.04025)."""
    Q, K = query.shape[-2], key.shape[-2]
    queries = query[..., :, None, :].expand(*query.shape[:-1], K, query.shape[-1])
    keys = key[..., None, :, :].expand(*key.shape[:-2], Q, K, key.shape[-1])
    return (torch.tanh(torch.cat([queries, keys], -1) @ weights["weight"].mT) @ weights["out.weight"].mT)[..., 0]


FORMULAS = {"dot": dot, "general": general, "additive": additive, "concat": concat}
