"""Cross-entropy with smoothed labels, summed over the labels of a batch; the `ignored` one is none.

uniform   (1 - e) nll(label) + e / V sum_v nll(v)                          Szegedy et al. 2016, section 7; torch's
others    (1 - e) nll(label) + e / (V - 1) sum_{v != label} nll(v)         fairseq's

nll(v) = log sum_u exp(logits[u]) - logits[v].   https://arxiv.org/abs/1512.00567
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor


def smoothed(logits: Tensor, labels: Tensor, smoothing: float, kind: str, ignored: int) -> tuple[Tensor, Tensor]:
    """Of logits (..., V) and labels (...): the loss, a sum over all labels with its gradient, and the sum of their negative
    log-likelihood in nats, unsmoothed and without gradient. Both are float32 scalars."""
    size = logits.shape[-1]
    # A weight on the label and one on every id say both variants.
    every = smoothing / size if kind == "uniform" else smoothing / (size - 1)
    label = 1 - smoothing - (0.0 if kind == "uniform" else every)
    loss, nll = _Smoothed.apply(logits.reshape(-1, size), labels.reshape(-1), label, every, ignored)  # type: ignore[no-untyped-call]
    return loss, nll


BLOCK = 2**18
"""Logits that a CPU looks at together, so that what is made of them stays in its cache."""


def _blocks(logits: Tensor) -> list[slice]:
    """Rows of logits (N, V) that are looked at together: all of them but on a CPU."""
    count, size = logits.shape
    rows = max(1, BLOCK // size) if logits.is_cpu else max(1, count)
    return [slice(first, first + rows) for first in range(0, count, rows)]


class _Smoothed(torch.autograd.Function):
    """label * nll(y) + every * sum_v nll(v), whose gradient (label + every V) softmax - label [v = y] - every is made in one
    pass: of all tensors of a step, these are the largest."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, label: float, every: float, ignored: int) -> tuple[Tensor, Tensor]:
        real = labels != ignored
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
        plain = nll.sum()
        ctx.mark_non_differentiable(plain)
        return loss, plain

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None, None, None]:
        logits, labels, total, real = ctx.saved_tensors
        made = torch.empty_like(logits)
        for rows in _blocks(logits):
            grown = (logits[rows].float() - total[rows, None]).exp_()
            grown.mul_(ctx.label + ctx.every * logits.shape[1]).sub_(ctx.every)
            grown[torch.arange(len(grown), device=labels.device), labels[rows]] -= ctx.label
            made[rows] = grown.mul_((gradient * real[rows])[:, None])
        return made, None, None, None, None
