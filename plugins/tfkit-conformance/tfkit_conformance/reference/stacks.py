"""The formula of a stack of layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from tfkit.plugin import Component
from tfkit.plugin.model_parts import NodeContext, PositionSite

from .formulas import formula, of
from .placements import LayerFunctions
from .sublayers import SublayerCall
from .values import Value, Weights


def stack(options: Any, context: NodeContext, weights: Weights, inputs: Mapping[str, Value]) -> Value:
    """x_n = layer_n(x_n-1), n = 1 .. N, then the final norm, Vaswani et al. 2017, section 3.1
    (https://arxiv.org/abs/1706.03762). Positions of a layer: x_n = layer_n(x_n-1 + p), Dehghani et al. 2018, equation 4
    (https://arxiv.org/abs/1807.03819). `inputs` holds the memories of sub-layers under the names of their nodes."""
    read = inputs["input"]
    x = read.tensor
    layers = [x]
    values: dict[Any, Tensor] = {}
    tables = _Tables(x.shape[-1], bool(options.causal))
    plan = list(_applied(options.layers))
    for _, layer in plan:
        tables.add(layer)
    for number, layer in plan:
        layer_weights = weights.under(f"layers.{number}")
        branches, scales = {}, {}
        for part in layer.sublayers:
            memory = None
            if part.entry.reads == "memory":
                memory = inputs[getattr(part.options, "memory", None) or "memory"]
            call = SublayerCall(bool(options.causal), read.shown(), memory, layer.position, values)
            shared = tables.shared(layer, part)
            below = layer_weights.under(
                f"branches.{part.options.name}", {} if shared is None else {"position": f"{weights.prefix}{shared}"}
            )
            branches[part.options.name] = partial(_branch, part, below, call)
            scales[part.options.name] = part.options.residual_scale
        names = layer.placement.entry.norm_sites(layer.placement.options, tuple(branches))
        norm = of("norm", layer.norm)
        norms = {name: partial(norm, layer_weights.under(f"norms.{name}")) for name in names}
        if (key := tables.key_of_added(layer)) is not None:
            table = weights.under(f"positions.{tables.found.index(key)}")
            x = placed(layer.position, key[1], table, x, read.shown())
        x = of("placement", layer.placement)(LayerFunctions(branches, norms, scales, context.stack), x)
        layers.append(x)
    x = of("norm", options.final_norm)(weights.under("final_norm"), x)
    return Value(x, read.visible, tuple(layers))


def placed(position: Any, site: PositionSite, weights: Weights, x: Tensor, visible: Tensor) -> Tensor:
    """x with its positions: all tokens count, or only real ones. Padding then has the row of a table before that of the first
    position, as in fairseq, and no output depends on it."""
    if "embeddings" not in position.entry.acts:
        return x
    B, L = x.shape[:2]
    positions = torch.arange(L, device=x.device).expand(B, L)
    if getattr(position.options, "count", "all") == "visible":
        positions = visible.long().cumsum(1) - visible.long()  # the number of real tokens before
        if position.kind == "learned":
            positions = positions.where(visible, -min(position.options.offset, 1))
    return of("position", position, "embeddings")(site, weights, x, positions)  # type: ignore[no-any-return]


def _branch(part: Component, weights: Weights, call: SublayerCall, x: Tensor) -> Tensor:
    return formula("sublayer", part.entry)(part.options, weights, x, call)  # type: ignore[no-any-return]


def _applied(layers: Any, start: int = 0) -> Any:
    """(number of the set of weights, layer), in the order of the forward pass; a `shared` group has one set."""
    for group in layers:
        inner = _sets(group.layers) if group.layers else 1
        for index in range(group.repeat):
            base = start if group.shared else start + index * inner
            if group.layers:
                yield from _applied(group.layers, base)
            else:
                yield base, group
        start += inner if group.shared else group.repeat * inner


def _sets(layers: Any) -> int:
    """The number of sets of weights of a pattern."""
    return sum((1 if group.shared else group.repeat) * (_sets(group.layers) if group.layers else 1) for group in layers)


class _Tables:
    """The position tables that layers of one stack share: equal schemes of self-attention at equal sites have one table."""

    def __init__(self, width: int, causal: bool) -> None:
        self.width, self.causal = width, causal
        self.found: list[tuple[Component, PositionSite]] = []

    def _key(self, layer: Any, part: Component) -> tuple[Component, PositionSite] | None:
        scheme = layer.position
        if part.entry.reads != "self" or not hasattr(part.options, "num_heads"):
            return None
        if not scheme.entry.acts & {"queries_keys", "scores"} or scheme.entry.tables(scheme.options) == "layer":
            return None
        heads = part.options.num_heads
        site = PositionSite(self.width, heads, part.options.head_dim or self.width // heads, causal=self.causal)
        if scheme.entry.acts == {"scores"} and not scheme.entry.reads_query:
            site = replace(site, head_dim=0)
        return scheme, site

    def key_of_added(self, layer: Any) -> tuple[Component, PositionSite] | None:
        """The scheme whose positions are added to the input of a layer."""
        return (layer.position, PositionSite(self.width)) if layer.position.entry.acts == {"embeddings"} else None

    def add(self, layer: Any) -> None:
        for key in (self.key_of_added(layer), *(self._key(layer, part) for part in layer.sublayers)):
            if key is not None and key not in self.found:
                self.found.append(key)

    def shared(self, layer: Any, part: Component) -> str | None:
        """The path of the table below the stack; None where the sub-layer has its own, or none."""
        key = self._key(layer, part)
        return None if key is None else f"positions.{self.found.index(key)}"
