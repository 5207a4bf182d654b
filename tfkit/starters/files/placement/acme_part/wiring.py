"""Norms at the end of each branch, Liu et al. 2022, section 3.1 (https://arxiv.org/abs/2111.09883):

x = skip x + scale dropout(norm(f(x)))        for each sub-layer f in turn
"""

from __future__ import annotations

from torch import Tensor, nn

from tfkit.plugin import NoOptions
from tfkit.plugin.model_parts import LayerParts, StackContext, residuals


class Wiring(nn.Module):
    """A layer, (B, L, M) -> (B, L, M)."""

    def __init__(self, parts: LayerParts) -> None:
        super().__init__()
        self.branches, self.norms = nn.ModuleDict(parts.branches), nn.ModuleDict(parts.norms)
        self.residuals = residuals(parts)

    def forward(self, x: Tensor, context: StackContext, index: int) -> Tensor:
        for name, branch in self.branches.items():
            x = self.residuals[name](x, self.norms[name](branch(x, context, index)))
        return x


def build(options: NoOptions, parts: LayerParts) -> nn.Module:
    return Wiring(parts)
