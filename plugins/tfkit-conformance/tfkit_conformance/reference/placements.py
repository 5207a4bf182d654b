"""The formulas of the built-in placements: one layer, (B, L, M) -> (B, L, M).

A formula gets the sub-layers f and the norms of the layer as functions, by name, the factor of each sub-layer
(`residual_scale`), and the role and depth of its stack.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

Function = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class LayerFunctions:
    """Sub-layers in order, norms, and factors of the sub-layers, by name; `stack` is a `PlacementContext`."""

    branches: Mapping[str, Function]
    norms: Mapping[str, Function]
    scales: Mapping[str, float]
    stack: Any


def _sum(options: Any, x: Tensor, branch: Tensor) -> Tensor:
    """x + f(x), or f(x) alone without a residual."""
    return x + branch if options.residual else branch


def post(options: Any, layer: LayerFunctions, x: Tensor) -> Tensor:
    """x = norm(x + f(x)), Vaswani et al. 2017, section 3.1 (https://arxiv.org/abs/1706.03762)."""
    for name, f in layer.branches.items():
        x = layer.norms[name](_sum(options, x, layer.scales[name] * f(x)))
    return x


def pre(options: Any, layer: LayerFunctions, x: Tensor) -> Tensor:
    """x = x + f(norm(x)), Xiong et al. 2020, table 1 (https://arxiv.org/abs/2002.04745)."""
    for name, f in layer.branches.items():
        x = _sum(options, x, layer.scales[name] * f(layer.norms[name](x)))
    return x


def sandwich(options: Any, layer: LayerFunctions, x: Tensor) -> Tensor:
    """x = x + norm(f(norm(x))), Ding et al. 2021, section 2.3 (https://arxiv.org/abs/2105.13290)."""
    for name, f in layer.branches.items():
        x = x + layer.scales[name] * layer.norms[f"{name}_out"](f(layer.norms[f"{name}_in"](x)))
    return x


def residual_post(options: Any, layer: LayerFunctions, x: Tensor) -> Tensor:
    """x = x + norm(f(x)), Liu et al. 2021, section 3.2 (https://arxiv.org/abs/2111.09883)."""
    for name, f in layer.branches.items():
        x = x + layer.scales[name] * layer.norms[name](f(x))
    return x


def deepnorm_alpha(stack: Any) -> float:
    """Wang et al. 2022, figure 2 (https://arxiv.org/abs/2203.00555), with N encoder and M decoder layers:

    encoder-only, decoder-only   (2 N)^(1/4)
    encoder of both              0.81 (N^4 M)^(1/16)
    decoder of both              (3 M)^(1/4)
    """
    if stack.role == "encoder":
        return float(0.81 * (stack.num_layers**4 * stack.partner_layers) ** (1 / 16))
    return float(((3 if stack.role == "decoder" else 2) * stack.num_layers) ** (1 / 4))


def deepnorm(options: Any, layer: LayerFunctions, x: Tensor) -> Tensor:
    """x = norm(alpha x + f(x)), same figure (see `deepnorm_alpha`)."""
    alpha = deepnorm_alpha(layer.stack)
    for name, f in layer.branches.items():
        x = layer.norms[name](alpha * x + layer.scales[name] * f(x))
    return x


def parallel(options: Any, layer: LayerFunctions, x: Tensor) -> Tensor:
    """x = x + f(norm(x)) + g(norm(x)), Chowdhery et al. 2022, section 2 (https://arxiv.org/abs/2204.02311)."""
    y = x
    for name, f in layer.branches.items():
        norm = layer.norms["shared" if options.norms == "shared" else name]
        y = y + layer.scales[name] * f(norm(x))
    return y


def none(options: Any, layer: LayerFunctions, x: Tensor) -> Tensor:
    """x = x + f(x)"""
    for name, f in layer.branches.items():
        x = _sum(options, x, layer.scales[name] * f(x))
    return x


FORMULAS = {
    "post": post,
    "pre": pre,
    "sandwich": sandwich,
    "residual_post": residual_post,
    "deepnorm": deepnorm,
    "parallel": parallel,
    "none": none,
}
