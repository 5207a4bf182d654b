"""Rotary positions, Su et al. 2021, equation 34 (https://arxiv.org/abs/2104.09864). They rotate each pair of features (a, b) of
a query or key at position t by the angle t f_i:

    (a, b) -> (a cos(t f_i) - b sin(t f_i),  b cos(t f_i) + a sin(t f_i))

    half           the pair i is features (i, i + dims/2)
    interleaved    the pair i is features (2i, 2i + 1)

A score then depends on positions only through their difference. Features from `dims` on are not rotated.
Angles are float64 and their sines are rounded once, so the difference is exact to float32 at any position up to 2^20.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...attention.positions import PositionRange
from ...plugin.model_parts import MethodModule
from ...slots.position import PositionSite
from .entries_rotary import RotaryOptions, Scaling
from .rotary_frequencies import attention_factor, frequencies

Waves = tuple[Tensor, Tensor]
"""Cosines and signed sines by position and feature, (L, dims) each: y = x * cosine + partner(x) * sine."""


class Rotary(MethodModule):
    """Rotates the first `dims` features of queries (B,H,Q,D) and keys (B,G,N,D)."""

    def __init__(self, dims: int, base: float, scaling: Scaling | None, interleaved: bool) -> None:
        super().__init__()
        self.dims, self.base, self.scaling, self.interleaved = dims, base, scaling, interleaved

    def prepare(self, span: PositionRange) -> tuple[Waves, Waves]:
        """The waves of queries and keys, in float32, or in float64 for a float64 model."""
        queries = self._waves(span.query_positions(), span.dtype)
        if span.is_whole:
            return queries, queries
        return queries, self._waves(span.key_positions(), span.dtype)

    def rotate(self, query: Tensor, key: Tensor, tables: tuple[Waves, Waves]) -> tuple[Tensor, Tensor]:
        """Query and key after rotation, in their own dtypes."""
        return self._turn(query, tables[0]), self._turn(key, tables[1])

    def _turn(self, x: Tensor, waves: Waves) -> Tensor:
        rotated = x[..., : self.dims]
        a, b = torch.unflatten(rotated, -1, (-1, 2)).unbind(-1) if self.interleaved else rotated.chunk(2, dim=-1)
        cosine, sine = waves
        rotated = torch.addcmul(rotated * cosine, self._join(b, a), sine).to(x.dtype)  # (b, a): each feature's partner
        return rotated if self.dims == x.shape[-1] else torch.cat((rotated, x[..., self.dims :]), dim=-1)

    def _join(self, a: Tensor, b: Tensor) -> Tensor:
        """Puts the first members a and second members b of all pairs, (..., dims/2) each, back in their layout, (..., dims)."""
        return torch.stack((a, b), dim=-1).flatten(-2) if self.interleaved else torch.cat((a, b), dim=-1)

    def _waves(self, positions: Tensor, dtype: torch.dtype) -> Waves:
        angle = positions.unsqueeze(-1) * frequencies(self.base, self.dims, self.scaling, positions.device)
        factor, dtype = attention_factor(self.scaling), torch.promote_types(dtype, torch.float32)
        cosine, sine = (angle.cos() * factor).to(dtype), (angle.sin() * factor).to(dtype)
        return self._join(cosine, cosine), self._join(-sine, sine)

    def extra_repr(self) -> str:
        return f"dims={self.dims}, base={self.base}, interleaved={self.interleaved}"


def build(options: RotaryOptions, site: PositionSite) -> nn.Module:
    """Rotates pairs of features that are dims/2 apart."""
    return Rotary(options.dims or site.head_dim, options.base, options.scaling, interleaved=False)


def build_interleaved(options: RotaryOptions, site: PositionSite) -> nn.Module:
    """Rotates pairs of adjacent features."""
    return Rotary(options.dims or site.head_dim, options.base, options.scaling, interleaved=True)
