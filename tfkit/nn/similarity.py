"""Similarity of two batches of vectors, Radford et al. 2021, figure 3 (https://arxiv.org/abs/2103.00020):

y[i, j] = exp(s) a_i . b_j / (|a_i| |b_j|)
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from .runtime.context import ForwardContext
from .runtime.node_output import NodeOutput, Padding


class Similarity(nn.Module):
    """Vectors a (B, M) and b (B, M) -> (B, B): row i compares a_i with every b_j. `scale` s is learned."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.empty(1))

    def forward(self, context: ForwardContext, inputs: tuple[NodeOutput, NodeOutput]) -> NodeOutput:
        a, b = (_unit(output.tensor) for output in inputs)
        return NodeOutput(self.scale.exp() * (a @ b.mT), Padding())


def _unit(x: Tensor) -> Tensor:
    """x / |x|; a zero vector stays zero."""
    return nn.functional.normalize(x, dim=-1, eps=max(1e-12, torch.finfo(x.dtype).tiny))
