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


class _Smoothed(torch.autograd.Function):
    """label * nll(y) + every * sum_v nll(v), whose gradient (label + every V) softmax - label [v = y] - every is made in one
    pass, over the logits' own memory: of all tensors of a step, these are the largest."""

    @staticmethod
    def forward(ctx: Any, logits: Tensor, labels: Tensor, label: float, every: float, ignored: int) -> tuple[Tensor, Tensor]:
        real = labels != ignored
        labels = labels * real
        wide = logits.float()
        total = wide.logsumexp(1)
        nll = (total - wide.gather(1, labels[:, None]).squeeze(1)) * real
        loss = label * nll.sum()
        if every:
            loss = loss + every * ((total * wide.shape[1] - wide.sum(1)) * real).sum()
        ctx.save_for_backward(logits, labels, total, real)
        ctx.label, ctx.every = label, every
        plain = nll.sum()
        ctx.mark_non_differentiable(plain)
        return loss, plain

    @staticmethod
    def backward(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor, None, None, None, None]:
        logits, labels, total, real = ctx.saved_tensors
        grown = (logits.float() - total[:, None]).exp_()
        grown.mul_(ctx.label + ctx.every * logits.shape[1]).sub_(ctx.every)
        rows = torch.arange(len(labels), device=labels.device)
        grown[rows, labels] -= ctx.label
        grown.mul_((gradient * real)[:, None])
        return grown.to(logits.dtype), None, None, None, None
