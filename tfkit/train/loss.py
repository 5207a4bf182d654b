"""Cross-entropy with smoothed labels, summed over the labels of a batch.

uniform   (1 - e) nll(label) + e / V sum_v nll(v)                          Szegedy et al. 2016, section 7; torch
others    (1 - e) nll(label) + e / (V - 1) sum_{v != label} nll(v)         fairseq

nll(v) = log sum_u exp(logits[u]) - logits[v].   https://arxiv.org/abs/1512.00567
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor


class LossSums(NamedTuple):
    """Sums over the labels of a batch, float32 scalars: the smoothed `loss` with its gradient, and the `nll` in nats,
    unsmoothed and without gradient."""

    loss: Tensor
    nll: Tensor


def smoothed_cross_entropy(logits: Tensor, labels: Tensor, smoothing: float, kind: str, ignore_index: int) -> LossSums:
    """The loss of logits against labels.

    Args:
        logits: (..., V), any floating dtype.
        labels: (...) int64.
        smoothing: e of the equations above.
        kind: `uniform` or `others`.
        ignore_index: The label of positions to ignore.

    Returns:
        The sums over the labels.
    """
    size = logits.shape[-1]
    label, every = weights_of(smoothing, kind, size)
    return LossSums(*_Smoothed.apply(logits.reshape(-1, size), labels.reshape(-1), label, every, ignore_index))  # type: ignore[no-untyped-call]


def weights_of(smoothing: float, kind: str, size: int) -> tuple[float, float]:
    """Both variants are a weight of the label and a weight of every id."""
    every = smoothing / size if kind == "uniform" else smoothing / (size - 1)
    return 1 - smoothing - (0.0 if kind == "uniform" else every), every


BLOCK = 2**18
"""Logits that a CPU processes at a time, so that temporary tensors stay in its cache."""


def _blocks(logits: Tensor) -> list[slice]:
    """Rows of logits (N, V) to process at a time: all of them, except on a CPU."""
    count, size = logits.shape
    rows = max(1, BLOCK // size) if logits.is_cpu else max(1, count)
    return [slice(first, first + rows) for first in range(0, count, rows)]


class _Smoothed(torch.autograd.Function):
    """label * nll(y) + every * sum_v nll(v), with the gradient (label + every V) softmax - label [v = y] - every.

    The gradient takes one pass over the logits, which are the largest tensor of a step.
    """

    @staticmethod
    def forward(
        ctx: Any, logits: Tensor, labels: Tensor, label: float, every: float, ignore_index: int
    ) -> tuple[Tensor, Tensor]:
        real = labels != ignore_index
        labels = labels * real
        total, sums = torch.empty(2, len(logits), dtype=torch.float32, device=logits.device)
        for rows in _blocks(logits):
            wide = logits[rows].float()
            total[rows] = wide.logsumexp(1)
            if every:
                sums[rows] = wide.sum(1)
        nll = (total - logits.gather(1, labels[:, None]).squeeze(1).float()) * real
        loss = label * nll.sum()
        if every:
            loss = loss + every * ((total * logits.shape[1] - sums) * real).sum()
        ctx.save_for_backward(logits, labels, total, real)
        ctx.label, ctx.every = label, every
        total_nll = nll.sum()
        ctx.mark_non_differentiable(total_nll)
        return loss, total_nll

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None, None, None]:
        logits, labels, total, real = ctx.saved_tensors
        result = torch.empty_like(logits)
        for rows in _blocks(logits):
            weighted = (logits[rows].float() - total[rows, None]).exp_()
            weighted.mul_(ctx.label + ctx.every * logits.shape[1]).sub_(ctx.every)
            weighted[torch.arange(len(weighted), device=labels.device), labels[rows]] -= ctx.label
            result[rows] = weighted.mul_((gradient * real[rows])[:, None])
        return result, None, None, None, None
