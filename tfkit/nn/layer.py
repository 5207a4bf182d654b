"""The parts from which a placement builds a layer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jaxtyping import Float
from torch import Tensor, nn

from .fast_layers import Dropout


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
