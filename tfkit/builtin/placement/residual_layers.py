"""The placements as modules: each is a whole layer, (B, L, M) -> (B, L, M).

post, deepnorm   x = norm(skip x + f(x))
pre              x = skip x + f(norm(x))
sandwich         x = skip x + norm_out(f(norm_in(x)))
residual_post    x = skip x + norm(f(x))
none             x = skip x + f(x)
parallel         x = skip x + f(norm(x)) + g(norm(x)) + ...

f, g are the sub-layers; `residual: false` is skip 0. `parallel` gives all of them the same x; the others apply them in turn.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from jaxtyping import Float
from torch import Tensor, nn

from ...nn.runtime.context import StackContext
from ...nn.runtime.node_output import normed
from ...nn.stack import LayerParts, residuals
from ...plugin import NoOptions
from .entries import ParallelOptions


class Sequential(nn.Module):
    """Applies the sub-layers in turn: x = step(layer, name, x, f, norm) for each sub-layer f with its name."""

    def __init__(self, parts: LayerParts, step: Step) -> None:
        super().__init__()
        self.branches, self.norms = nn.ModuleDict(parts.branches), nn.ModuleDict(parts.norms)
        self.residuals = residuals(parts)
        self.step = step

    def forward(self, x: Float[Tensor, "B L M"], context: StackContext, index: int) -> Float[Tensor, "B L M"]:
        def norm(site: str, x: Tensor) -> Tensor:
            return normed(self.norms[site], x, context.padding)

        for name, branch in self.branches.items():
            x = self.step(self, name, x, lambda y, branch=branch: branch(y, context, index), norm)  # type: ignore[misc]
        return x


Sublayer = Callable[[Tensor], Tensor]
NormAt = Callable[[str, Tensor], Tensor]
Step = Callable[[Sequential, str, Tensor, Sublayer, NormAt], Tensor]


def _post(layer: Sequential, name: str, x: Tensor, f: Sublayer, norm: NormAt) -> Tensor:
    return norm(name, layer.residuals[name](x, f(x)))


def _pre(layer: Sequential, name: str, x: Tensor, f: Sublayer, norm: NormAt) -> Tensor:
    return layer.residuals[name](x, f(norm(name, x)))  # type: ignore[no-any-return]


def _sandwich(layer: Sequential, name: str, x: Tensor, f: Sublayer, norm: NormAt) -> Tensor:
    return layer.residuals[name](x, norm(f"{name}_out", f(norm(f"{name}_in", x))))  # type: ignore[no-any-return]


def _residual_post(layer: Sequential, name: str, x: Tensor, f: Sublayer, norm: NormAt) -> Tensor:
    return layer.residuals[name](x, norm(name, f(x)))  # type: ignore[no-any-return]


def _bare(layer: Sequential, name: str, x: Tensor, f: Sublayer, norm: NormAt) -> Tensor:
    return layer.residuals[name](x, f(x))  # type: ignore[no-any-return]


class Parallel(nn.Module):
    """Applies all sub-layers to the same x, after one shared norm or one norm each, and adds their outputs to x."""

    def __init__(self, parts: LayerParts, shared: bool) -> None:
        super().__init__()
        self.branches, self.norms = nn.ModuleDict(parts.branches), nn.ModuleDict(parts.norms)
        self.residuals, self.skip = residuals(replace(parts, skip=1.0)), parts.skip  # x is added once, not once per sub-layer
        self.shared = shared

    def forward(self, x: Float[Tensor, "B L M"], context: StackContext, index: int) -> Float[Tensor, "B L M"]:
        shared = normed(self.norms["shared"], x, context.padding) if self.shared else None
        total = x if self.skip == 1.0 else x * self.skip
        for name, branch in self.branches.items():
            y = shared if shared is not None else normed(self.norms[name], x, context.padding)
            total = self.residuals[name](total, branch(y, context, index))
        return total


def post(options: NoOptions, parts: LayerParts) -> nn.Module:
    return Sequential(parts, _post)


def pre(options: NoOptions, parts: LayerParts) -> nn.Module:
    return Sequential(parts, _pre)


def sandwich(options: NoOptions, parts: LayerParts) -> nn.Module:
    return Sequential(parts, _sandwich)


def residual_post(options: NoOptions, parts: LayerParts) -> nn.Module:
    return Sequential(parts, _residual_post)


def bare(options: NoOptions, parts: LayerParts) -> nn.Module:
    return Sequential(parts, _bare)


def parallel(options: ParallelOptions, parts: LayerParts) -> nn.Module:
    return Parallel(parts, options.norms == "shared")
