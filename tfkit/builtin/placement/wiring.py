"""The wirings themselves: each is a whole layer, (B, L, M) -> (B, L, M).

post, deepnorm   x = norm(skip x + f(x))
pre              x = skip x + f(norm(x))
sandwich         x = skip x + norm_out(f(norm_in(x)))
parallel         x = skip x + f(norm(x)) + g(norm(x)) + ...
none             x = skip x + f(x)
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from torch import Tensor, nn

from ...nn.layer import LayerParts, residuals
from ...nn.runtime.context import StackContext
from ...plugin import NoOptions
from .entries import ParallelOptions


class Post(nn.Module):
    """The norm stands after the residual sum."""

    def __init__(self, parts: LayerParts) -> None:
        super().__init__()
        self.branches, self.norms = nn.ModuleDict(parts.branches), nn.ModuleDict(parts.norms)
        self.residuals = residuals(parts)

    def forward(self, x: Tensor, context: StackContext, index: int) -> Tensor:
        for name, branch in self.branches.items():
            x = self.norms[name](self.residuals[name](x, branch(x, context, index)))
        return x


class Pre(nn.Module):
    """The norm stands before the sub-layer; the residual is never normed."""

    def __init__(self, parts: LayerParts) -> None:
        super().__init__()
        self.branches, self.norms = nn.ModuleDict(parts.branches), nn.ModuleDict(parts.norms)
        self.residuals = residuals(parts)

    def forward(self, x: Tensor, context: StackContext, index: int) -> Tensor:
        for name, branch in self.branches.items():
            x = self.residuals[name](x, branch(self.norms[name](x), context, index))
        return x


class Sandwich(nn.Module):
    """A norm before and one after each sub-layer."""

    def __init__(self, parts: LayerParts) -> None:
        super().__init__()
        self.branches, self.norms = nn.ModuleDict(parts.branches), nn.ModuleDict(parts.norms)
        self.residuals = residuals(parts)

    def forward(self, x: Tensor, context: StackContext, index: int) -> Tensor:
        for name, branch in self.branches.items():
            inner = self.norms[f"{name}_out"](branch(self.norms[f"{name}_in"](x), context, index))
            x = self.residuals[name](x, inner)
        return x


class Parallel(nn.Module):
    """All sub-layers read the same x; one norm is shared or each has its own."""

    def __init__(self, parts: LayerParts, shared: bool) -> None:
        super().__init__()
        self.branches, self.norms = nn.ModuleDict(parts.branches), nn.ModuleDict(parts.norms)
        self.residuals, self.skip = residuals(replace(parts, skip=1.0)), parts.skip  # one residual, however many branches
        self.shared = shared

    def forward(self, x: Tensor, context: StackContext, index: int) -> Tensor:
        once = self.norms["shared"](x) if self.shared else None
        total = x if self.skip == 1.0 else x * self.skip
        for name, branch in self.branches.items():
            normed = once if once is not None else self.norms[name](x)
            total = self.residuals[name](total, branch(normed, context, index))
        return total


class Bare(nn.Module):
    """A residual and nothing else."""

    def __init__(self, parts: LayerParts) -> None:
        super().__init__()
        self.branches, self.residuals = nn.ModuleDict(parts.branches), residuals(parts)

    def forward(self, x: Tensor, context: StackContext, index: int) -> Tensor:
        for name, branch in self.branches.items():
            x = self.residuals[name](x, branch(x, context, index))
        return x


def post(options: NoOptions, parts: LayerParts) -> nn.Module:
    return Post(parts)


def pre(options: NoOptions, parts: LayerParts) -> nn.Module:
    return Pre(parts)


def sandwich(options: NoOptions, parts: LayerParts) -> nn.Module:
    return Sandwich(parts)


def parallel(options: ParallelOptions, parts: LayerParts) -> nn.Module:
    return Parallel(parts, options.norms == "shared")


def bare(options: Any, parts: LayerParts) -> nn.Module:
    return Bare(parts)
