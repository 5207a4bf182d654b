"""Rotary positions, Su et al. 2021, equation 34 (https://arxiv.org/abs/2104.09864). They rotate each pair of features (a, b) of
a query or key at position t by the angle t f_i:

    (a, b) -> (a cos(t f_i) - b sin(t f_i),  b cos(t f_i) + a sin(t f_i))

    half           the pair i is features (i, i + dims/2)
    interleaved    the pair i is features (2i, 2i + 1)

A score then depends on positions only through their difference. Features from `dims` on are not rotated.
Angles are float64 and their sines are rounded once, so the difference is exact to float32 at any position up to 2^20.

Their frequencies, and their scaling to texts `factor` = s times longer than the training texts.

    f_i = base^(-2i/dims), i = 0 .. dims/2 - 1                       Su et al. 2021, https://arxiv.org/abs/2104.09864

    linear    f_i / s                                                Chen et al. 2023, https://arxiv.org/abs/2306.15595
    ntk       base * s^(dims/(dims-2)) in place of base              the last frequency becomes f / s, the first stays
    yarn      f_i ((1 - k_i) / s + k_i), queries and keys times 0.1 ln(s) + 1     Peng et al. 2023, https://arxiv.org/abs/2309.00071
    llama3    f_i ((1 - k_i) / s + k_i)                              https://github.com/meta-llama/llama-models

Frequency i makes r_i = trained_len f_i / (2 pi) turns within the trained length. k_i is 0 where r_i <= low, 1 where
r_i >= high, and linear between them: in r_i (llama3), or in i (yarn; the ends are whole i unless `truncate` is false). NTK
scaling is static: a scaling that follows the text length would not match the keys that are already in a cache.
"""

from __future__ import annotations

from math import ceil, floor, log, pi

import torch
from torch import Tensor, nn

from ...attention.positions import PositionRange
from ...plugin.model_parts import MethodModule
from ...slots.position import PositionSite
from .entries import RotaryOptions, Scaling


def frequencies(base: float, dims: int, scaling: Scaling | None, device: torch.device) -> Tensor:
    """The frequency of each pair of features, (dims/2,) float64, in radians per position."""
    index = torch.arange(dims // 2, dtype=torch.float64, device=device)
    if scaling is None:
        return _plain(base, dims, index)
    if scaling.kind == "linear":
        return _plain(base, dims, index) / scaling.factor
    if scaling.kind == "ntk":
        return _plain(base * scaling.factor ** (dims / (dims - 2)), dims, index)
    original = _plain(base, dims, index)
    kept = _kept_by_index(base, dims, scaling, index) if scaling.kind == "yarn" else _kept_by_turns(scaling, original)
    return original * ((1 - kept) / scaling.factor + kept)


def attention_factor(scaling: Scaling | None) -> float:
    """The factor of rotated queries and keys."""
    if scaling is None or scaling.kind != "yarn":
        return 1.0
    return scaling.attention_factor or 0.1 * log(scaling.factor) + 1.0


def _plain(base: float, dims: int, index: Tensor) -> Tensor:
    return base ** (-2.0 / dims * index)


def _kept_by_turns(scaling: Scaling, original: Tensor) -> Tensor:
    low, high = scaling.turns()
    turns = (scaling.trained_len or 0) * original / (2 * pi)
    return ((turns - low) / (high - low)).clamp(0, 1)


def _kept_by_index(base: float, dims: int, scaling: Scaling, index: Tensor) -> Tensor:
    def index_at(turns: float) -> float:
        return dims * log((scaling.trained_len or 0) / (2 * pi * turns)) / (2 * log(base))

    low, high = scaling.turns()
    first, last = index_at(high), index_at(low)
    if scaling.truncate is not False:
        first, last = floor(first), ceil(last)
    first, last = max(first, 0), min(last, dims - 1)
    # If both ends are equal, the ramp is a step, and any width up to one index gives the same values.
    return 1 - ((index - first) / (last - first or 1)).clamp(0, 1)


Waves = tuple[Tensor, Tensor]
"""Cosines and signed sines by position and feature, (L, dims) or (B, 1, L, dims) each: y = x * cosine + partner(x) * sine."""


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
        positions = positions if positions.dim() == 1 else positions.unsqueeze(1)  # (B, 1, L): all heads of a row
        angle = positions.unsqueeze(-1) * frequencies(self.base, self.dims, self.scaling, positions.device)
        factor, dtype = attention_factor(self.scaling), torch.promote_types(dtype, torch.float32)
        cosine, sine = (angle.cos() * factor).to(dtype), (angle.sin() * factor).to(dtype)
        return self._join(cosine, cosine), self._join(-sine, sine)

    def extra_repr(self) -> str:
        return f"dims={self.dims}, base={self.base}, interleaved={self.interleaved}"


def rotary_half(options: RotaryOptions, site: PositionSite) -> nn.Module:
    """Rotates pairs of features that are dims/2 apart."""
    return Rotary(options.dims or site.head_dim, options.base, options.scaling, interleaved=False)


def rotary_interleaved(options: RotaryOptions, site: PositionSite) -> nn.Module:
    """Rotates pairs of adjacent features."""
    return Rotary(options.dims or site.head_dim, options.base, options.scaling, interleaved=True)
