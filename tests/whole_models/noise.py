"""Noise of the size of every operation's own rounding error, while a computation runs: what `rounding` disturbs it with.

A B                     gamma(n) |A||B|                      inner length n        (Higham 2002, section 3.5)
sum, mean               gamma(n) sum |x|                                           (section 4.2)
layer norm              gamma(M + 8) (|x| + mean|x|) r |w|                         r = 1 / sqrt(variance + eps)
  backward, a = |dy w|  gamma(M + 8) r (a + mean a + |x'| mean(a |x'|))            x' = (x - mean) r, itself off by
                        + d mean(a |x'|) r + |x'| mean(a d) r                      d = gamma(M + 8) (|x| + |mean|) r
softmax                 inputs off by gamma(n) max |x|
  backward              gamma(n) P (|dP| + sum P |dP|)
data movement           0
any other operation     4 u |y|
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_map

from tfkit_conformance.attention import bound

PROBE = 2.0**-33
"""Unit roundoff that the noise stands for: far above float64's own, which then does not count; small enough for first order."""
PRODUCTS = {"mm": 0, "bmm": 0, "mv": 0, "dot": 0, "addmm": 1, "baddbmm": 1}
"""Products by name, with the place of their first factor among the arguments."""
SUMS = ("sum", "mean")
SHAKEN = ("norm", "softmax", "var", "logsumexp")
"""Words in the names of operations, not named here themselves, that are taken to see inputs off by gamma(n) max |x|."""
# fmt: off
EXACT = frozenset(
    {
        "_to_copy", "_unsafe_view", "abs", "amax", "amin", "arange", "cat", "clamp", "clamp_min", "clone", "constant_pad_nd",
        "copy", "embedding", "empty", "empty_like", "empty_strided", "eye", "flip", "full", "full_like", "gather", "index",
        "index_select", "lift_fresh", "masked_fill", "max", "maximum", "min", "minimum", "neg", "new_empty",
        "new_empty_strided", "new_full", "new_ones", "new_zeros", "ones", "ones_like", "relu", "repeat", "scalar_tensor",
        "sort", "stack",
        "threshold_backward", "tril", "triu", "where", "zeros", "zeros_like",
    }
)
# fmt: on
"""Operations that round nothing."""


gamma = partial(bound.gamma, unit=PROBE)


def layer_norm(found: Any, x: Tensor, shape: Any, weight: Tensor | None, bias: Tensor | None, eps: float) -> list[Tensor]:
    """Sizes for y, mean and r."""
    y, _, r = found
    terms, axes = _row(shape)
    spread = (x.abs() + x.abs().mean(axes, keepdim=True)) * r
    size = gamma(terms + 8) * (spread if weight is None else spread * weight.abs())
    return [size + 4 * PROBE * y.abs(), gamma(terms) * x.abs().mean(axes, keepdim=True), 4 * PROBE * r]


def layer_norm_backward(
    found: Any, dy: Tensor, x: Tensor, shape: Any, mean: Tensor, r: Tensor, weight: Any, bias: Any, mask: Any
) -> list[Tensor | None]:
    """Sizes for dx, dw and db."""
    terms, axes = _row(shape)
    a = dy.abs() if weight is None else (dy * weight).abs()
    normed = ((x - mean) * r).abs()
    d = gamma(terms + 8) * (x.abs() + mean.abs()) * r
    inner, off = (a * normed).mean(axes, keepdim=True), (a * d).mean(axes, keepdim=True)
    dx = r * (gamma(terms + 8) * (a + a.mean(axes, keepdim=True) + normed * inner) + d * inner + normed * off)
    rows = tuple(range(dy.dim() - len(shape)))
    count = gamma(max(1, dy.numel() // terms))
    dw = (dy.abs() * (count * normed + d)).sum(rows)
    return [size if part is not None else None for part, size in zip(found, (dx, dw, count * dy.abs().sum(rows)), strict=True)]


def softmax_backward(found: Any, dP: Tensor, P: Tensor, axis: int, dtype: Any) -> list[Tensor]:
    """The size for dS = P (dP - sum P dP)."""
    return [gamma(P.shape[axis] + 2) * P * (dP.abs() + (P * dP.abs()).sum(axis, keepdim=True))]


OWN: dict[str, Callable[..., Any]] = {
    "native_layer_norm": layer_norm,
    "native_layer_norm_backward": layer_norm_backward,
    "_softmax_backward_data": softmax_backward,
}
"""Operations with a formula of their own: (what they gave, *what they were given) -> the size for each result."""


class Noise(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """While it is entered, every floating result is disturbed; `elements` counts how many numbers were."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.seed, self.elements, self.silent = seed, 0, False
        self.draws: dict[torch.device, torch.Generator] = {}

    @contextmanager
    def silence(self) -> Iterator[None]:
        """Until the block ends, only calls of `disturbed` add noise."""
        before, self.silent = self.silent, True
        try:
            yield
        finally:
            self.silent = before

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        name = func.overloadpacket.__name__
        changes = any(value.alias_info is not None for value in func._schema.returns)
        if self.silent or changes or name in EXACT:
            return func(*args, **kwargs)
        if name in OWN:
            given = func(*args, **kwargs)
            parts = given if isinstance(given, tuple) else (given,)
            sizes = OWN[name](given, *args, **kwargs)
            moved = tuple(part if size is None else self.disturbed(part, size) for part, size in zip(parts, sizes, strict=True))
            return moved if isinstance(given, tuple) else moved[0]
        if any(word in name for word in SHAKEN):
            args = tree_map(self._shaken, args)
        found = func(*args, **kwargs)
        if name in PRODUCTS and isinstance(found, Tensor):
            size = gamma(args[PRODUCTS[name]].shape[-1] + 1) * func(*(_abs(value) for value in args), **kwargs)
            return self.disturbed(found, size)
        if name in SUMS and isinstance(args[0], Tensor) and args[0].is_floating_point():
            terms = max(1, args[0].numel() // max(1, found.numel()))
            return self.disturbed(found, gamma(terms) * func(args[0].abs(), *args[1:], **kwargs))
        return tree_map(self._rounded, found)

    def _rounded(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        return self.disturbed(value, 4 * PROBE * value.abs())

    def _shaken(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point() or value.dim() < 2:
            return value
        largest = torch.where(value.isfinite(), value, 0.0).abs().amax(-1, keepdim=True).expand(value.shape)
        # The most negative number stands for "hidden" in a softmax and is no number of the computation.
        largest = torch.where(largest > 1e30, value.abs(), largest)
        return self.disturbed(value, gamma(value.shape[-1]) * largest)

    def disturbed(self, value: Tensor, size: Tensor) -> Tensor:
        """`value` with noise of a size, element by element."""
        draw = self.draws.get(value.device)
        if draw is None:
            draw = self.draws[value.device] = torch.Generator(value.device).manual_seed(self.seed)
        self.elements += value.numel()
        normal = torch.randn(value.shape, generator=draw, dtype=value.dtype, device=value.device)
        moved = value + size * normal
        return torch.where(moved.isfinite() & (value.abs() < 1e30), moved, value)


def _abs(value: Any) -> Any:
    return value.abs() if isinstance(value, Tensor) else value


def _row(shape: Any) -> tuple[int, tuple[int, ...]]:
    """How many numbers a norm is over, and their axes."""
    return torch.Size(shape).numel(), tuple(range(-len(shape), 0))
