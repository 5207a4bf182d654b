"""Linear maps y = x W^T + b and their gradients dx = dy W, dW = dy^T x, db = sum dy, with the faster of MKL and oneDNN on a CPU
(onednn.py). Both sum the same products, in different order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .onednn import can_multiply, product

ENOUGH = 8_000_000
"""From this many multiplications per thread on, oneDNN is faster, including the cost of a Python autograd function."""


def linear(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
    """x (..., in), weight (out, in), bias (out,) -> (..., out)."""
    few = not can_multiply(x, weight, bias) or x.numel() * weight.shape[0] < ENOUGH * torch.get_num_threads()
    if few or not weight.is_contiguous():
        return functional.linear(x, weight, bias)
    rows = x.reshape(-1, x.shape[-1])
    found: Tensor = _Linear.apply(rows, weight, bias)  # type: ignore[no-untyped-call]
    return found.view(*x.shape[:-1], weight.shape[0])


class _Linear(torch.autograd.Function):
    """x (N, in), weight (out, in), bias (out,) or None -> (N, out)."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        ctx.save_for_backward(x, weight)
        return product(x, weight, bias)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, Tensor | None, Tensor | None]:
        x, weight = ctx.saved_tensors
        wants_x, wants_weight, wants_bias = ctx.needs_input_grad
        # Torch's own products support double backward and batched gradients.
        if torch.is_grad_enabled() or not can_multiply(gradient, x, weight):
            of_x = gradient @ weight if wants_x else None
            of_weight = gradient.t() @ x if wants_weight else None
        else:
            gradient = gradient.contiguous()
            of_x = gradient_of_input(gradient, weight) if wants_x else None
            of_weight = weight_gradient(gradient, x) if wants_weight else None
        return of_x, of_weight, gradient.sum(0) if wants_bias else None


def gradient_of_input(gradient: Tensor, weight: Tensor) -> Tensor:
    """dy W: (N, out) and (out, in) -> (N, in)."""
    return product(gradient, weight.t()) if can_multiply(gradient, weight) else gradient @ weight


def add_gradient_of_weight(gradient: Tensor, x: Tensor, total: Tensor) -> None:
    """Add dy^T x, of (N, out) and (N, in), to a total (out, in), which may have a wider dtype."""
    if can_multiply(gradient, x):
        total += weight_gradient(gradient, x)
    elif total.dtype == x.dtype:
        total.addmm_(gradient.t(), x)
    else:
        total += gradient.t() @ x


def weight_gradient(gradient: Tensor, x: Tensor) -> Tensor:
    """dy^T x (out, in). The longer side becomes the columns: three times as fast if it is a vocabulary."""
    if gradient.shape[1] > x.shape[1]:
        return product(x.t(), gradient.t()).t().contiguous()
    return product(gradient.t(), x.t())
