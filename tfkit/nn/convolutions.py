"""Frames of features, and convolutions over a sequence, as in Whisper's encoder (https://arxiv.org/abs/2212.04356):

    y[t] = f(b + sum_k W_k x[s t + k - (w - 1) // 2]),    k = 0 .. w - 1,  t = 0 .. ceil(L / s) - 1

with x = 0 outside of the sequence and at its padding, so that padding changes nothing. After the last convolution come
positions and dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from ..attention.positions import PositionRange
from .layers import Dropout
from .runtime.context import ForwardContext, use
from .runtime.node_output import NodeOutput, Padding


class Features(nn.Module):
    """Frames (B, L, F) as they are."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, context: ForwardContext) -> NodeOutput:
        return NodeOutput(context.inputs[self.name], context.padding[self.name])


class Convolutions(nn.Module):
    """(B, L, M) -> (B, ceil(L / s), M'), s the product of all strides.

    Args:
        convolutions: the convolutions, without padding of their own.
        activations: the activation after each.
        position: a position scheme for the result, or None.
        dropout: dropout of the result.
    """

    def __init__(
        self,
        convolutions: list[nn.Conv1d],
        activations: Sequence[Callable[[Tensor], Tensor]],
        position: nn.Module | None,
        dropout: float,
    ) -> None:
        super().__init__()
        self.convolutions = nn.ModuleList(convolutions)
        self.activations = tuple(activations)
        self.position = position
        self.dropout = Dropout(dropout) if dropout > 0.0 else None

    def forward(self, context: ForwardContext, input: NodeOutput) -> NodeOutput:
        x, padding = input.tensor, input.padding
        for convolution, activate in zip(self.convolutions, self.activations, strict=True):
            visible = padding.as_visible(x.shape[1])
            if visible is not None:
                x = x.masked_fill(~visible.unsqueeze(2), 0.0)
            x = activate(_convolved(convolution, x))  # type: ignore[arg-type]
            padding = _strided(padding, convolution.stride[0])  # type: ignore[index, arg-type]
        if self.position is not None:
            length = x.shape[1]
            visible = padding.as_visible(length)
            x = use(self.position, "embed", x, PositionRange(length, length, 0, 0, x.device, x.dtype, visible))
        if self.dropout is not None:
            x = self.dropout(x)
        return NodeOutput(x, padding)


def _convolved(convolution: nn.Conv1d, x: Tensor) -> Tensor:
    width = convolution.kernel_size[0]
    around = functional.pad(x.mT, ((width - 1) // 2, width // 2))  # (B, M, L + w - 1)
    convolved: Tensor = convolution(around)
    return convolved.mT


def _strided(padding: Padding, stride: int) -> Padding:
    """The padding of every `stride`-th position."""
    visible = None if padding.visible is None else padding.visible[:, ::stride]
    lengths = None if padding.lengths is None else torch.div(padding.lengths + stride - 1, stride, rounding_mode="floor")
    return Padding(visible, lengths)
