"""A stack of layers, and the norm it may end in."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .runtime.context import ForwardContext, StackContext
from .runtime.node_output import NodeOutput


@dataclass(frozen=True)
class Wiring:
    """What a sub-layer is told of its surroundings while it is built: the name of its stack, its own name, and the number of
    the stack's position scheme that its layer uses (None: none, or one of its own)."""

    stack: str
    name: str
    scheme: int | None


class Stack(nn.Module):
    """(B, L, M) -> (B, L, M) through `layers` in the order `order`: a shared layer stands once in `layers` and several times
    in `order`. `schemes` are the position schemes whose tables the layers share. With `checkpoint`, a backward pass computes
    the layers' activations again instead of keeping them."""

    def __init__(
        self,
        name: str,
        layers: list[nn.Module],
        order: tuple[int, ...],
        schemes: list[nn.Module],
        final_norm: nn.Module | None,
        causal: bool,
        checkpoint: bool,
        keep_layers: bool,
    ) -> None:
        super().__init__()
        self.name, self.order = name, order
        self.layers = nn.ModuleList(layers)
        self.positions = nn.ModuleList(schemes)
        self.final_norm = final_norm
        self.causal, self.checkpoint, self.keep_layers = causal, checkpoint, keep_layers

    def forward(
        self,
        context: ForwardContext,
        input: NodeOutput,
        memory: NodeOutput | None = None,
        memories: dict[str, NodeOutput] | None = None,
    ) -> NodeOutput:
        """The stream after all layers; `memory` is what cross-attention reads, `memories` those that sub-layers name."""
        x = input.tensor
        offset = context.state.length if context.state is not None and self.causal else 0
        stack_context = StackContext(
            context, self.name, self.causal, input.padding, x.shape[1], offset, memory, memories or {}, tuple(self.positions)
        )
        kept = [x]
        again = self.checkpoint and torch.is_grad_enabled()
        for index, number in enumerate(self.order):
            layer = self.layers[number]
            x = self._again(layer, x, stack_context, index) if again else layer(x, stack_context, index)
            if self.keep_layers:
                kept.append(x)
        if self.final_norm is not None:
            x = self.final_norm(x)
        return NodeOutput(x, input.padding, input.ids, tuple(kept) if self.keep_layers else None)

    def _again(self, layer: nn.Module, x: Tensor, context: StackContext, index: int) -> Tensor:
        # Both passes through a layer must find the same things remembered, or they would not keep the same tensors.
        before = dict(context.memo)

        def through(x: Tensor) -> tuple[Tensor, dict[Hashable, Any]]:
            own = replace(context, memo=dict(before))
            return layer(x, own, index), own.memo

        # The re-entrant kind loses gradients silently when no input of the layer requires one.
        x, made = checkpoint(through, x, use_reentrant=False)
        context.memo.update(made)
        return x
