"""Sinusoidal positions, Vaswani et al. 2017, section 3.5 (https://arxiv.org/abs/1706.03762):

    p(t)[2i] = sin(t f_i),  p(t)[2i+1] = cos(t f_i)                 interleaved, as printed in the paper
    p(t)[i]  = sin(t f_i),  p(t)[ceil(M/2) + i] = cos(t f_i)        halves (tensor2tensor, Marian, Whisper)

    f_i = base^(-2i/M)                 last frequency exclusive: 1/base would come next
    f_i = base^(-i/(M/2 - 1))          last frequency inclusive: the last one is 1/base (tensor2tensor, Whisper)

How a vector p of P features for a position meets the embedding x of M features (learned positions too):

    add       y = x + p                 P = M
    concat    y = W [x; p]              back to M features
    append    y = [x; p]                M + P features, the width of every node that follows

M in f_i is the number of features of p.

Angles are float64, so that the sine is exact to float32 even near position 2^20.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...attention.positions import PositionRange
from ...plugin.model_parts import MethodModule
from ...slots.position import PositionSite
from .entries_embedding import CombineOptions, SinusoidalOptions, features


def sinusoids(positions: Tensor, width: int, base: float, inclusive: bool, interleaved: bool) -> Tensor:
    """Maps positions (...) to p (..., width), float64."""
    pairs = (width + 1) // 2
    index = torch.arange(pairs, dtype=torch.float64, device=positions.device)
    angle = positions.unsqueeze(-1) * base ** (-index / (pairs - 1 if inclusive else width / 2))
    if interleaved:
        return torch.stack((angle.sin(), angle.cos()), dim=-1).flatten(-2)[..., :width]
    return torch.cat((angle.sin(), angle[..., : width // 2].cos()), dim=-1)


def projection(options: CombineOptions, site: PositionSite) -> nn.Linear | None:
    """W of `concat`, (M, M + P); None for the others."""
    inner = site.width + features(options, site)
    return nn.Linear(inner, site.width, bias=False) if options.combine == "concat" else None


def combined(x: Tensor, p: Tensor, combine: str, linear: nn.Linear | None) -> Tensor:
    """x (B, L, M) and p (L, P) or (B, L, P), of one dtype, to (B, L, M) or (B, L, M + P)."""
    if combine == "add":
        return x + p
    both = torch.cat((x, p.expand(*x.shape[:-1], -1)), dim=-1)
    if linear is None:
        return both
    projected: Tensor = linear(both)
    return projected


class Sinusoidal(MethodModule):
    """Combines sinusoids of `width` features with embeddings (B,L,M)."""

    def __init__(
        self,
        width: int,
        base: float,
        inclusive: bool,
        interleaved: bool,
        visible: bool,
        combine: str,
        projection: nn.Linear | None,
        offset: int = 0,
    ) -> None:
        super().__init__()
        self.offset = offset
        self.width, self.base = width, base
        self.inclusive, self.interleaved, self.visible = inclusive, interleaved, visible
        self.combine, self.projection = combine, projection

    def embed(self, x: Tensor, span: PositionRange) -> Tensor:
        """x (B,L,M) to (B,L,M), or (B,L,M+P) for `append`."""
        positions = span.visible_positions() if self.visible else span.query_positions()
        if self.offset:
            positions = positions + self.offset
        waves = sinusoids(positions, self.width, self.base, self.inclusive, self.interleaved).to(x.dtype)
        return combined(x, waves, self.combine, self.projection)

    def extra_repr(self) -> str:
        return f"{self.width}, base={self.base}, interleaved={self.interleaved}"


def build(options: SinusoidalOptions, site: PositionSite) -> nn.Module:
    """Sines and cosines in turn."""
    return _build(options, site, interleaved=True)


def build_halves(options: SinusoidalOptions, site: PositionSite) -> nn.Module:
    """All sines, then all cosines."""
    return _build(options, site, interleaved=False)


def _build(options: SinusoidalOptions, site: PositionSite, interleaved: bool) -> nn.Module:
    return Sinusoidal(
        width=features(options, site),
        base=options.base,
        inclusive=options.last_frequency == "inclusive",
        interleaved=interleaved,
        visible=options.count == "visible",
        combine=options.combine,
        projection=projection(options, site),
        offset=options.offset,
    )
