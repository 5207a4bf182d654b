"""FlashAttention's arguments in plain torch, for tests of adaptors: nothing here says anything about real kernels.

Tensors are (B, L, H, D), or packed (tokens, H, D). Causality and windows are aligned to the last key. A side of a window is
open if it is negative or None. ALiBi is -slope |i + K - Q - j|.
"""

from __future__ import annotations

from itertools import pairwise

import torch


def sequence(query, key, value, scale, causal, window, softcap, slopes=None, dropout=0.0):
    """One sequence (L, H, D): its output and log-sum-exp (H, L)."""
    Q, H, _ = query.shape
    K, G, _ = key.shape
    key, value = (tensor.repeat_interleave(H // G, 1) for tensor in (key, value))
    scores = scale * torch.einsum("qhd,khd->hqk", query, key)
    if softcap:
        scores = softcap * torch.tanh(scores / softcap)
    away = torch.arange(K)[None] - (torch.arange(Q)[:, None] + K - Q)
    if slopes is not None:
        assert slopes.dtype == torch.float32
        scores = scores - slopes[:, None, None] * away.abs()
    left, right = (None if side is None or side < 0 else side for side in window)
    seen = torch.ones(Q, K, dtype=torch.bool)
    if causal:
        right = 0
    if left is not None:
        seen &= away >= -left
    if right is not None:
        seen &= away <= right
    assert bool(seen.any(1).all()), "the adaptor never sends a query that sees nothing"
    scores = scores.masked_fill(~seen, -torch.inf)
    weights = torch.softmax(scores, -1)
    if dropout:
        weights = torch.nn.functional.dropout(weights, dropout)
    return torch.einsum("hqk,khd->qhd", weights, value), torch.logsumexp(scores, -1)


def dense(query, key, value, **call):
    found = [sequence(*row, **call) for row in zip(query, key, value, strict=True)]
    return torch.stack([output for output, _ in found]), torch.stack([lse for _, lse in found])


def packed(query, key, value, query_borders, key_borders, most_queries, most_keys, **call):
    assert query_borders.dtype == key_borders.dtype == torch.int32
    queries, keys = query_borders.tolist(), key_borders.tolist()
    assert (queries[-1], keys[-1]) == (len(query), len(key))
    assert most_queries == max(end - start for start, end in pairwise(queries))
    assert most_keys == max(end - start for start, end in pairwise(keys))
    found = [
        sequence(query[queries[n] : queries[n + 1]], key[keys[n] : keys[n + 1]], value[keys[n] : keys[n + 1]], **call)
        for n in range(len(queries) - 1)
    ]
    return torch.cat([output for output, _ in found]), torch.cat([lse for _, lse in found], 1)
