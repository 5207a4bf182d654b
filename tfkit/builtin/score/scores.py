"""The built-in score functions, as modules that map query (B,H,Q,D) and mapped key to scores (B,H,Q,K)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from ...plugin import NoOptions, expand_heads
from ...plugin.model_parts import MethodModule
from ...slots.score import ScoreSite
from .entries import HiddenOptions


class ScoreModule(MethodModule):
    """`module(query, mapped)` is `module.scores(query, mapped)`; `module("map_keys", key)` is `module.map_keys(key)`."""

    def forward(self, *arguments: Any) -> Any:
        return super().forward(*arguments) if isinstance(arguments[0], str) else self.scores(*arguments)

    def scores(self, query: Tensor, mapped: Tensor) -> Tensor:
        """Query (B,H,Q,D) and mapped key (B,G,K,E) to scores (B,H,Q,K)."""
        raise NotImplementedError


class TanhSum(nn.Module):
    """The hidden layer of the additive and the concat score:

    score[q, k] = sum_e v_e tanh(query[q, e] + key[k, e])

    The sums of all pairs, (B, H, Q, K, E), are the largest tensor of an RNN decoder with attention: training would keep one for
    every target word. So they are computed for one query at a time, and the backward pass computes them again instead of
    keeping them. tanh(x) is computed as 2 sigmoid(2 x) - 1: torch's sigmoid takes a sixth of the time of its tanh on a CPU, and
    the two differ by 2 units in the last place of 1.

    Query (B, H, Q, E) and key (B, H, K, E) to scores (B, H, Q, K), with the weights v (1, E).
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(1, hidden))

    def forward(self, query: Tensor, key: Tensor) -> Tensor:
        return tanh_sum(query, key, self.weight[0])


def tanh_sum(query: Tensor, key: Tensor, v: Tensor) -> Tensor:
    """Scores (B, H, Q, K) of all pairs of queries (B, H, Q, E) and keys (B, H, K, E) with v (E,)."""
    # A compiler decides itself what it keeps, and a transform of `torch.func` takes torch's operators alone.
    if torch.compiler.is_compiling() or torch._C._are_functorch_transforms_active():
        return torch.tanh(key.unsqueeze(2) + query.unsqueeze(3)) @ v
    if torch.is_grad_enabled() and (query.requires_grad or key.requires_grad or v.requires_grad):
        return _TanhSum.apply(query, key, v)  # type: ignore[no-any-return, no-untyped-call]
    return _scores(query, key, v)


def _scores(query: Tensor, key: Tensor, v: Tensor) -> Tensor:
    return torch.stack([(_hidden(row, key) @ v.unsqueeze(1)).squeeze(3) for row in (2 * query).unbind(2)], 2)


def _hidden(row: Tensor, key: Tensor) -> Tensor:
    """tanh(query + key) of one query: (B, H, E), twice the query, and (B, H, K, E) to (B, H, K, E)."""
    return torch.add(row.unsqueeze(2), key, alpha=2).sigmoid_().mul_(2).sub_(1)


class _TanhSum(torch.autograd.Function):
    """Scores whose backward pass computes the hidden layer again."""

    @staticmethod
    def forward(ctx: Any, query: Tensor, key: Tensor, v: Tensor) -> Tensor:
        ctx.save_for_backward(query, key, v)
        return _scores(query, key, v)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query, key, v = ctx.saved_tensors
        if torch.is_grad_enabled():  # gradients of gradients: autograd needs every step
            hidden = torch.tanh(key.unsqueeze(2) + query.unsqueeze(3))  # (B, H, Q, K, E)
            inner = grad.unsqueeze(4) * v * (1 - hidden * hidden)
            return inner.sum(3), inner.sum(2), (grad.unsqueeze(4) * hidden).sum((0, 1, 2, 3))
        grad_queries, grad_key, grad_v = [], None, torch.zeros_like(v)
        for row, slope in zip((2 * query).unbind(2), grad.unbind(2), strict=True):  # (B, H, E) and (B, H, K)
            hidden = _hidden(row, key)  # (B, H, K, E)
            grad_v += slope.flatten() @ hidden.flatten(0, 2)
            inner = slope.unsqueeze(3) * v
            torch.ops.aten.tanh_backward.grad_input(inner, hidden, grad_input=inner)  # slope v (1 - hidden^2), in place
            grad_queries.append(inner.sum(2))
            grad_key = inner if grad_key is None else grad_key.add_(inner)
        assert grad_key is not None
        return torch.stack(grad_queries, 2), grad_key, grad_v


class General(ScoreModule):
    """General (bilinear) score, Luong et al. 2015, section 3.1 (https://arxiv.org/abs/1508.04025):

    score(q, k) = q . W k

    Maps query (B,H,Q,D) and mapped key (B,G,K,D) to scores (B,H,Q,K): a dot product.
    """

    def __init__(self, head_dim: int, key_dim: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(head_dim, key_dim))

    def map_keys(self, key: Tensor) -> Tensor:
        """W k: (B,G,K,key_dim) -> (B,G,K,D)."""
        return functional.linear(key.to(self.weight.dtype), self.weight).to(key.dtype)

    def scores(self, query: Tensor, mapped: Tensor) -> Tensor:
        dtype = self.weight.dtype  # under autocast the weights are wider than query and key
        keys = expand_heads(mapped.to(dtype), query.shape[1])
        return query.to(dtype) @ keys.transpose(2, 3)


def general(options: NoOptions, site: ScoreSite) -> nn.Module:
    """The score as a module."""
    return General(site.head_dim, site.key_features)


class Additive(ScoreModule):
    """Additive score, Bahdanau et al. 2015, appendix A.1.2 (https://arxiv.org/abs/1409.0473):

    score(q, k) = v . tanh(W q + U k)

    Maps query (B,H,Q,D) and mapped key (B,G,K,d_score) to scores (B,H,Q,K).
    """

    def __init__(self, head_dim: int, key_dim: int, hidden: int) -> None:
        super().__init__()
        self.query = nn.Linear(head_dim, hidden, bias=False)
        self.key = nn.Linear(key_dim, hidden, bias=False)
        self.out = TanhSum(hidden)

    def map_keys(self, key: Tensor) -> Tensor:
        """U k: (B,G,K,key_dim) -> (B,G,K,d_score)."""
        mapped: Tensor = self.key(key.to(self.out.weight.dtype))
        return mapped.to(key.dtype)

    def scores(self, query: Tensor, mapped: Tensor) -> Tensor:
        dtype = self.out.weight.dtype  # under autocast the weights are wider than query and key
        keys = expand_heads(mapped.to(dtype), query.shape[1])
        scores: Tensor = self.out(self.query(query.to(dtype)), keys)
        return scores


def additive(options: HiddenOptions, site: ScoreSite) -> nn.Module:
    """The score as a module."""
    return Additive(site.head_dim, site.key_features, options.d_score or site.head_dim)


class Concat(ScoreModule):
    """Concat score, Luong et al. 2015, section 3.1 (https://arxiv.org/abs/1508.04025):

        score(q, k) = v . tanh(W [q; k])

    W [q; k] = W_q q + W_k k, so that each query and key is projected once, not once per pair.

    Maps query (B,H,Q,D) and mapped key (B,G,K,d_score) to scores (B,H,Q,K).
    """

    def __init__(self, head_dim: int, key_dim: int, hidden: int) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.weight = nn.Parameter(torch.empty(hidden, head_dim + key_dim))
        self.out = TanhSum(hidden)

    def map_keys(self, key: Tensor) -> Tensor:
        """W_k k: (B,G,K,key_dim) -> (B,G,K,d_score)."""
        return functional.linear(key.to(self.weight.dtype), self.weight[:, self.head_dim :]).to(key.dtype)

    def scores(self, query: Tensor, mapped: Tensor) -> Tensor:
        dtype = self.weight.dtype  # under autocast the weights are wider than query and key
        keys = expand_heads(mapped.to(dtype), query.shape[1])
        scores: Tensor = self.out(functional.linear(query.to(dtype), self.weight[:, : self.head_dim]), keys)
        return scores


def concat(options: HiddenOptions, site: ScoreSite) -> nn.Module:
    """The score as a module."""
    return Concat(site.head_dim, site.key_features, options.d_score or site.head_dim)
