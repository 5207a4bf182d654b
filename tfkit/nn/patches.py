"""Images to sequences of patches, Dosovitskiy et al. 2021, equation 1 (https://arxiv.org/abs/2010.11929):

    x = dropout(norm([class; distillation; x_1 E + b; ...; x_N E + b] + p))        x_n (C * P * P), the n-th patch, row by row

N = (H / P) (W / P). The distillation token is that of DeiT (Touvron et al. 2021, https://arxiv.org/abs/2012.12877, section 3).
Registers (Darcet et al. 2024, https://arxiv.org/abs/2309.16588) are learned vectors without a position, between these tokens
and the patches.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ..attention.positions import PositionRange
from .layers import Dropout
from .runtime.context import ForwardContext, use
from .runtime.node_output import NodeOutput


class Patches(nn.Module):
    """Images (B, C, H, W) -> (B, 2 + R + N, M) with a class token, a distillation token and R registers.

    Args:
        name: name of the node.
        projection: the map E and its bias, as a convolution whose stride is its window.
        class_token: whether a learned vector comes first.
        distillation_token: whether another one follows it.
        registers: number of registers R.
        outer: width of the output and of the registers, M and the features that the position scheme appends.
        position: a position scheme for these tokens and the patches, or None.
        norm: norm of the sum, or None.
        dropout: dropout of the result.
    """

    def __init__(
        self,
        name: str,
        projection: nn.Conv2d,
        class_token: bool,
        distillation_token: bool,
        registers: int,
        outer: int,
        position: nn.Module | None,
        norm: nn.Module | None,
        dropout: float,
    ) -> None:
        super().__init__()
        self.name = name
        self.projection, self.position, self.embedding_norm = projection, position, norm
        self.class_token = nn.Parameter(torch.empty(self.width)) if class_token else None
        self.distillation_token = nn.Parameter(torch.empty(self.width)) if distillation_token else None
        self.registers = nn.Parameter(torch.empty(registers, outer)) if registers else None
        self.dropout = Dropout(dropout) if dropout > 0.0 else None

    @property
    def width(self) -> int:
        """The width M of the vectors."""
        return self.projection.out_channels

    def forward(self, context: ForwardContext) -> NodeOutput:
        patches: Tensor = self.projection(context.inputs[self.name])  # (B, M, H / P, W / P)
        grid = (patches.shape[2], patches.shape[3])
        x = patches.flatten(2).mT
        first = [token for token in (self.class_token, self.distillation_token) if token is not None]
        if first:
            x = torch.cat([*(token.expand(x.shape[0], 1, -1) for token in first), x], 1)
        if self.position is not None:
            length = x.shape[1]
            x = use(self.position, "embed", x, PositionRange(length, length, 0, 0, x.device, x.dtype, grid=grid))
        if self.registers is not None:
            registers = self.registers.expand(x.shape[0], -1, -1)
            x = torch.cat([x[:, : len(first)], registers, x[:, len(first) :]], 1)
        if self.embedding_norm is not None:
            x = self.embedding_norm(x)
        if self.dropout is not None:
            x = self.dropout(x)
        return NodeOutput(x, context.padding[self.name])
