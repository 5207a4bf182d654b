"""Bounds for a part with any equation; they assume only that it is computed stably.

A map is mixed forward-backward stable (Higham, Accuracy and Stability of Numerical Algorithms, 2002, section 1.5) where what it
computes is a slightly wrong answer to a slightly wrong question. To first order, with the Jacobians J_i of its float64 run,

    |y - f(x)| <= c ( sum_i |J_i| |x_i|  +  |y| )

where c is the unit roundoff of the dtype times the number of roundings to it, plus gamma of the float32 steps in between.

Derivatives are evaluated by differences along one random direction v, against one random cotangent g. With a step h,

    phi(t) = <g, f(x + t v)>,   D+ = (phi(h) - phi(0)) / h,   D- = (phi(0) - phi(-h)) / h

phi'(0) lies within |D+ - D-| of their mean (at a kink too, where it is one of them), up to the rounding of phi over h.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from ..attention.bound import gamma
from .law import SINGLE, LawExample

DIFFERENCE_STEP = 2.0**-10
SOME = 16
"""How many outputs `largest_bound` differentiates at most."""


def sensitivity(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Tensor:
    """sum_i |J_i| |x_i| + |y|, of the shape of y; the inputs are float64."""
    leaves = [tensor.detach().requires_grad_() for tensor in inputs]
    output = function(*leaves)
    total = output.detach().abs().clone()
    if not output.requires_grad:
        return total
    flat = total.view(-1)
    for number in range(flat.numel()):
        rows = torch.autograd.grad(output.reshape(-1)[number], leaves, retain_graph=True, allow_unused=True)
        for row, leaf in zip(rows, leaves, strict=True):
            if row is not None:
                flat[number] += (row.abs() * leaf.detach().abs()).sum()
    return total


def derivative_holds(example: LawExample, function: Callable[[], Tensor], leaves: Sequence[Tensor]) -> float:
    """The gradient of every leaf against differences, in float64; the largest error as a share of its bound."""
    output = function()
    if not output.requires_grad:
        raise example.broken("the output carries no gradient")
    cotangent = example.normal(*output.shape, dtype=torch.float64)
    gradients = torch.autograd.grad(output, list(leaves), cotangent, allow_unused=True)
    here, worst = output.detach().clone(), 0.0
    for number, (leaf, gradient) in enumerate(zip(leaves, gradients, strict=True)):
        if gradient is None:
            raise example.broken(f"input or weight {number} of shape {tuple(leaf.shape)} gets no gradient")
        example.finite("a gradient", gradient)
        direction = example.normal(*leaf.shape, dtype=torch.float64)
        with torch.no_grad():
            leaf.add_(direction, alpha=DIFFERENCE_STEP)
            ahead = function().clone()
            leaf.sub_(direction, alpha=2 * DIFFERENCE_STEP)
            behind = function().clone()
            leaf.add_(direction, alpha=DIFFERENCE_STEP)
        right = float(((ahead - here) * cotangent).sum()) / DIFFERENCE_STEP
        left = float(((here - behind) * cotangent).sum()) / DIFFERENCE_STEP
        rounded = 4 * SINGLE / DIFFERENCE_STEP * float((cotangent * here).abs().sum())
        message = f"the gradient of an input or weight of shape {tuple(leaf.shape)} does not agree with finite differences"
        bound = abs(right - left) + rounded
        got, want = torch.tensor([float((gradient * direction).sum())]), torch.tensor([(right + left) / 2])
        worst = max(worst, example.within(message, got, want, bound, "gradient"))
    return worst


def largest_bound(
    example: LawExample, function: Callable[..., Tensor], inputs: Sequence[Tensor], roundings: int, terms: int
) -> float:
    """The bound above for the largest of some outputs: for functions with hidden values that may be larger than their sum."""

    def some(*tensors: Tensor) -> Tensor:
        flat = function(*tensors).flatten()
        return flat[:: -(-flat.numel() // SOME)]

    total = float(sensitivity(some, inputs).max())
    return (roundings * example.unit + gamma(terms + 16, SINGLE)) * total + example.tiny
