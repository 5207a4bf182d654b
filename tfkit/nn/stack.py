"""A stack of layers with an optional final norm, and the parts from which a placement builds a layer."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from .layers import Dropout
from .multi_head import MultiHeadAttention
from .runtime.context import ForwardContext, StackContext
from .runtime.node_output import NodeOutput, normed


@dataclass(frozen=True)
class LayerParts:
    """The parts of one layer.

    Args:
        branches: sub-layers by name, in order.
        norms: norms by the names of `Placement.norm_sites`.
        skip: factor of the residual.
        scales: by sub-layer, the factor of its output.
        dropout: dropout probability of these outputs.
    """

    branches: Mapping[str, nn.Module]
    norms: Mapping[str, nn.Module]
    skip: float
    scales: Mapping[str, float]
    dropout: float


class Residual(nn.Module):
    """skip * x + scale * dropout(branch), elementwise on (B, L, M)."""

    def __init__(self, skip: float, scale: float, dropout: float) -> None:
        super().__init__()
        self.skip, self.scale = skip, scale
        self.dropout = Dropout(dropout) if dropout > 0.0 else None

    def forward(self, x: Float[Tensor, "B L M"], branch: Float[Tensor, "B L M"]) -> Float[Tensor, "B L M"]:
        if self.dropout is not None and self.dropout.training:
            branch = self.dropout(branch)
        if self.scale != 1.0:
            branch = branch * self.scale
        if self.skip != 1.0:
            x = x * self.skip
        return x + branch

    def extra_repr(self) -> str:
        return f"skip={self.skip}, scale={self.scale}"


def residuals(parts: LayerParts) -> nn.ModuleDict:
    """The residual connections of a layer.

    Args:
        parts: the parts of the layer.

    Returns:
        By sub-layer, a module (x, branch) -> skip * x + scale * dropout(branch) on (B, L, M).
    """
    return nn.ModuleDict({name: Residual(parts.skip, parts.scales[name], parts.dropout) for name in parts.branches})


@dataclass(frozen=True)
class Wiring:
    """Where a sub-layer is built.

    Args:
        stack: name of the stack.
        name: name of the sub-layer in its layer; the last part of the name of its attention site.
        scheme: index of the stack's position scheme that the layer uses; None for no scheme, or if the sub-layer owns one.
    """

    stack: str
    name: str
    scheme: int | None


class Stack(nn.Module):
    """(B, L, M) -> (B, L, M) through the layers: x_n = layer_n(x_(n-1) + p), where p is 0 or a position.

    Args:
        name: name of the node.
        layers: the distinct layers, each (B, L, M) -> (B, L, M).
        order: indices into `layers` in the order of application; a shared layer occurs several times.
        schemes: position schemes whose tables the layers share.
        final_norm: norm of the output, or None.
        causal: self-attention is causal.
        checkpoint: the backward pass recomputes the activations of each layer, which saves memory.
        keep_layers: the output holds the tensors before and after every layer.
        added: by application, the index of the scheme whose positions are added to what the layer reads; None for no scheme.
        memory_only_attended: only attention sites read the memory; see `AttentionNode`.
    """

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
        added: tuple[int | None, ...] = (),
        memory_only_attended: bool = True,
    ) -> None:
        super().__init__()
        self.name, self.order = name, order
        self.layers = nn.ModuleList(layers)
        self.positions = nn.ModuleList(schemes)
        self.final_norm = final_norm
        self.causal, self.checkpoint, self.keep_layers = causal, checkpoint, keep_layers
        self.added = added or (None,) * len(order)
        self.memory_only_attended = memory_only_attended
        sites = [site for _, site in self.attention_sites()]
        mixing = {site.name for site in sites if site.value_residual is not None}
        for site in sites:
            site.keeps_values = site.name in mixing

    def attention_sites(self) -> list[tuple[int, MultiHeadAttention]]:
        """The attention sites of all layers.

        Returns:
            Each multi-head attention with the index of the layer's application, once per application.
        """
        return [
            (index, module)
            for index, number in enumerate(self.order)
            for module in self.layers[number].modules()
            if isinstance(module, MultiHeadAttention)
        ]

    def forward(
        self,
        context: ForwardContext,
        input: NodeOutput,
        memory: NodeOutput | None = None,
        memories: dict[str, NodeOutput] | None = None,
    ) -> NodeOutput:
        """Apply all layers.

        Args:
            context: the current call of the model.
            input: (B, L, M) with its padding; while decoding, the new tokens only.
            memory: what cross-attention reads unless it names a memory.
            memories: the memories that sub-layers name, by reference.

        Returns:
            (B, L, M), with the padding and ids of the input.
        """
        x = input.tensor
        stack_context = context.stack_context(self.name, input, self.causal, memory, memories, tuple(self.positions))
        kept = [x]
        recompute = self.checkpoint and torch.is_grad_enabled()
        for index, (number, scheme) in enumerate(zip(self.order, self.added, strict=True)):
            layer = self.layers[number]
            if scheme is not None:
                x = x + stack_context.added_positions(scheme, x)
            x = self._checkpointed(layer, x, stack_context, index) if recompute else layer(x, stack_context, index)
            if self.keep_layers:
                kept.append(x)
        if self.final_norm is not None:
            x = normed(self.final_norm, x, input.padding)
        return NodeOutput(x, input.padding, input.ids, tuple(kept) if self.keep_layers else None)

    def _checkpointed(self, layer: nn.Module, x: Tensor, context: StackContext, index: int) -> Tensor:
        # The forward pass and the recomputation must start from the same memo. Otherwise they would save different tensors.
        before = dict(context.memo)

        def run_layer(x: Tensor) -> tuple[Tensor, dict[Hashable, Any]]:
            layer_context = context.changed(memo=dict(before))
            return layer(x, layer_context, index), layer_context.memo

        # With use_reentrant=True gradients are lost without an error if no input of the layer requires one.
        x, memo = checkpoint(run_layer, x, use_reentrant=False)
        context.memo.update(memo)
        return x
