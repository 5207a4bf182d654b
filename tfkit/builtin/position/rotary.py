"""Rotary positions, Su et al. 2021, equation 34 (https://arxiv.org/abs/2104.09864). A pair of features (a, b) of a query or key
at position t is turned by the angle t f_i:

    (a, b) -> (a cos(t f_i) - b sin(t f_i),  b cos(t f_i) + a sin(t f_i))

    half           the pair i is features (i, i + dims/2)
    interleaved    the pair i is features (2i, 2i + 1)

so that a score depends on positions only through their difference. Features from `dims` on are left as they are.
Angles are float64 and their sines are rounded once, so that the difference is exact to float32 at any position up to 2^20.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...plugin import PositionSite, Span
from .entries_rotary import RotaryOptions, Scaling
from .rotary_frequencies import attention_factor, frequencies

Waves = tuple[Tensor, Tensor]
"""Cosines and sines, each (L, dims/2)."""


class Rotary(nn.Module):
    """Turns the first `dims` features of queries (B,H,Q,D) and keys (B,G,N,D)."""

    def __init__(self, dims: int, base: float, scaling: Scaling | None, interleaved: bool) -> None:
        super().__init__()
        self.dims, self.base, self.scaling, self.interleaved = dims, base, scaling, interleaved

    def prepare(self, span: Span) -> tuple[Waves, Waves]:
        """The waves of the queries and those of the keys, in float32, or float64 where the model is."""
        queries = self._waves(span.query_positions(), span.dtype)
        if (span.offset, span.offset + span.queries) == (span.key_start, span.keys):
            return queries, queries
        return queries, self._waves(span.key_positions(), span.dtype)

    def rotate(self, query: Tensor, key: Tensor, tables: tuple[Waves, Waves]) -> tuple[Tensor, Tensor]:
        """Query and key, turned, in their own dtypes."""
        turn = _turn_interleaved if self.interleaved else _turn_half
        return turn(query, *tables[0]), turn(key, *tables[1])

    def _waves(self, positions: Tensor, dtype: torch.dtype) -> Waves:
        angle = positions.unsqueeze(-1) * frequencies(self.base, self.dims, self.scaling, positions.device)
        factor, dtype = attention_factor(self.scaling), torch.promote_types(dtype, torch.float32)
        return (angle.cos() * factor).to(dtype), (angle.sin() * factor).to(dtype)

    def extra_repr(self) -> str:
        return f"dims={self.dims}, base={self.base}, interleaved={self.interleaved}"


def _turn_half(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    pairs = cosine.shape[-1]
    a, b, rest = torch.tensor_split(x, (pairs, 2 * pairs), dim=-1)
    return torch.cat((a * cosine - b * sine, b * cosine + a * sine, rest), dim=-1).to(x.dtype)


def _turn_interleaved(x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
    pairs = cosine.shape[-1]
    a, b = torch.unflatten(x[..., : 2 * pairs], -1, (pairs, 2)).unbind(-1)
    turned = torch.stack((a * cosine - b * sine, b * cosine + a * sine), dim=-1).flatten(-2)
    return torch.cat((turned, x[..., 2 * pairs :]), dim=-1).to(x.dtype)


def build(options: RotaryOptions, site: PositionSite) -> nn.Module:
    """Pairs of features half a head apart."""
    return Rotary(options.dims or site.head_dim, options.base, options.scaling, interleaved=False)


def build_interleaved(options: RotaryOptions, site: PositionSite) -> nn.Module:
    """Pairs of neighbouring features."""
    return Rotary(options.dims or site.head_dim, options.base, options.scaling, interleaved=True)
