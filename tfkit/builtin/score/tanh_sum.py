"""The hidden layer of the additive and the concat score:

score[q, k] = sum_e v_e tanh(query[q, e] + key[k, e])

The sums of all pairs, (B, H, Q, K, E), are the largest tensor of an RNN decoder with attention: training would keep one for
every target word. So they are computed for one query at a time, and the backward pass computes them again instead of keeping
them.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def tanh_sum(query: Tensor, key: Tensor, v: Tensor) -> Tensor:
    """Scores of all pairs.

    Args:
        query: (B, H, Q, E).
        key: (B, H, K, E).
        v: (E,).

    Returns:
        (B, H, Q, K)
    """
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or v.requires_grad):
        return _TanhSum.apply(query, key, v)  # type: ignore[no-any-return, no-untyped-call]
    return _scores(query, key, v)


def _scores(query: Tensor, key: Tensor, v: Tensor) -> Tensor:
    # (B, H, K, E) at a time: it fits a cache, and all queries together may not fit the memory.
    return torch.stack([((key + row.unsqueeze(2)).tanh_() @ v.unsqueeze(1)).squeeze(3) for row in query.unbind(2)], 2)


class _TanhSum(torch.autograd.Function):
    """Scores whose backward pass computes the hidden layer again."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, v)
        return _scores(query, key, v)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        query, key, v = ctx.saved_tensors
        if torch.is_grad_enabled():  # gradients of gradients: autograd needs every step
            hidden = torch.tanh(key.unsqueeze(2) + query.unsqueeze(3))  # (B, H, Q, K, E)
            inner = grad.unsqueeze(4) * v * (1 - hidden * hidden)
            return inner.sum(3), inner.sum(2), (grad.unsqueeze(4) * hidden).sum((0, 1, 2, 3))
        grad_queries, grad_key, grad_v = [], None, torch.zeros_like(v)
        for row, slope in zip(query.unbind(2), grad.unbind(2), strict=True):  # (B, H, E) and (B, H, K)
            hidden = (key + row.unsqueeze(2)).tanh_()  # (B, H, K, E)
            grad_v += slope.flatten() @ hidden.flatten(0, 2)
            inner = torch.ops.aten.tanh_backward(slope.unsqueeze(3) * v, hidden)  # slope v (1 - hidden^2)
            grad_queries.append(inner.sum(2))
            grad_key = inner if grad_key is None else grad_key.add_(inner)
        assert grad_key is not None
        return torch.stack(grad_queries, 2), grad_key, grad_v
