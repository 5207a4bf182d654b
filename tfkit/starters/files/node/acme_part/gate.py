"""A gate for every feature, as in the gated linear unit of Dauphin et al. 2017 (https://arxiv.org/abs/1612.08083):

y = x * sigmoid(W x + b)
"""

from __future__ import annotations

import torch
from torch import nn

from tfkit.plugin.model_parts import ForwardContext, NodeContext, NodeOutput

from . import GateOptions


class Gate(nn.Module):
    """(B, L, M) or (B, M), to the same shape, with the padding of the input."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, width)

    def forward(self, context: ForwardContext, input: NodeOutput) -> NodeOutput:
        x = input.tensor
        return NodeOutput(x * torch.sigmoid(self.gate(x)), input.padding, input.ids)


def build(options: GateOptions, context: NodeContext, keep_layers: bool) -> nn.Module:
    return Gate(context.signals["input"].width)
