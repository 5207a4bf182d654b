"""Sinusoidal positions of the patches of an image, Chen et al. 2021 (https://arxiv.org/abs/2104.02057), section 4.4, and
MAE (https://arxiv.org/abs/2111.06377): a quarter of the features each for

    p(r, c) = [sin(c f_i); cos(c f_i); sin(r f_i); cos(r f_i)],    f_i = base^(-4i/M)

of a patch in row r and column c. With `last_frequency: inclusive`, f_i = base^(-i/(M/4 - 1)), as in "Better plain ViT
baselines" (https://arxiv.org/abs/2205.01580). To a class token nothing is added. A sequence without a grid is one row.

    y = x + p
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...attention.positions import PositionRange
from ...plugin.model_parts import MethodModule
from ...slots.position import PositionSite
from .entries_embedding import Sinusoidal2dOptions
from .sinusoidal import sinusoids


class Sinusoidal2d(MethodModule):
    """Adds the sinusoids of rows and columns to embeddings (B,L,M): `prefix` tokens, then the patches, row by row."""

    def __init__(self, width: int, prefix: int, base: float, inclusive: bool) -> None:
        super().__init__()
        self.width, self.prefix, self.base, self.inclusive = width, prefix, base, inclusive

    def embed(self, x: Tensor, span: PositionRange) -> Tensor:
        """x (B,L,M) to (B,L,M)."""
        if span.grid is None:
            column = span.query_positions()
            return x + torch.cat([self._waves(column), self._waves(torch.zeros_like(column))], -1).to(x.dtype)
        rows, columns = (torch.arange(count, device=span.device) for count in span.grid)
        across = self._waves(columns).expand(len(rows), -1, -1)  # (rows, columns, M / 2)
        down = self._waves(rows).unsqueeze(1).expand(-1, len(columns), -1)
        patches = torch.cat([across, down], -1).flatten(0, 1)
        return x + torch.cat([patches.new_zeros(self.prefix, self.width), patches]).to(x.dtype)

    def _waves(self, positions: Tensor) -> Tensor:
        return sinusoids(positions, self.width // 2, self.base, self.inclusive, interleaved=False)

    def extra_repr(self) -> str:
        return f"{self.width}, base={self.base}"


def build(options: Sinusoidal2dOptions, site: PositionSite) -> nn.Module:
    """The sinusoids of the site's images."""
    return Sinusoidal2d(site.width, site.prefix, options.base, options.last_frequency == "inclusive")
