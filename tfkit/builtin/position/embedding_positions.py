"""Position schemes that act on embeddings.

How a vector p of P features for a position meets the embedding x of M features:

    add       y = x + p                 P = M
    concat    y = W [x; p]              back to M features
    append    y = [x; p]                M + P features, the width of every node that follows
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...attention.positions import PositionAt, PositionRange
from ...plugin import Diagnostic, InputError, NoOptions
from ...plugin.model_parts import MethodModule
from ...slots.position import PositionSite
from .entries import CombineOptions, LearnedOptions, Sinusoidal2dOptions, SinusoidalOptions, features, learned_rows


def no_positions(options: NoOptions, site: PositionSite) -> nn.Module:
    """No positions. The scheme acts nowhere, so its module has no method to call."""
    return nn.Module()


def sinusoids(positions: Tensor, width: int, base: float, inclusive: bool, interleaved: bool, first: int = 0) -> Tensor:
    """Maps positions (...) to p (..., width), float64."""
    pairs = (width + 1) // 2
    index = torch.arange(first, first + pairs, dtype=torch.float64, device=positions.device)
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
    """Sinusoidal positions, Vaswani et al. 2017, section 3.5 (https://arxiv.org/abs/1706.03762):

        p(t)[2i] = sin(t f_i),  p(t)[2i+1] = cos(t f_i)                 interleaved, as printed in the paper
        p(t)[i]  = sin(t f_i),  p(t)[ceil(M/2) + i] = cos(t f_i)        halves (tensor2tensor, Marian, Whisper)

        f_i = base^(-2i/M)                 last frequency exclusive: 1/base would come next
        f_i = base^(-i/(M/2 - 1))          last frequency inclusive: the last one is 1/base (tensor2tensor, Whisper)

    M in f_i is the number of features of p. With `first_pair: 1` the pairs are counted from 1: f_(i+1) takes the place of f_i.

    Angles are float64, so that the sine is exact to float32 even near position 2^20.

    Combines sinusoids of `width` features with embeddings (B,L,M).
    """

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
        first_pair: int = 0,
    ) -> None:
        super().__init__()
        self.offset, self.first_pair = offset, first_pair
        self.width, self.base = width, base
        self.inclusive, self.interleaved, self.visible = inclusive, interleaved, visible
        self.combine, self.projection = combine, projection

    def embed(self, x: Tensor, span: PositionRange) -> Tensor:
        """x (B,L,M) to (B,L,M), or (B,L,M+P) for `append`."""
        positions = span.visible_positions() if self.visible else span.query_positions()
        if self.offset:
            positions = positions + self.offset
        waves = sinusoids(positions, self.width, self.base, self.inclusive, self.interleaved, self.first_pair).to(x.dtype)
        return combined(x, waves, self.combine, self.projection)

    def extra_repr(self) -> str:
        return f"{self.width}, base={self.base}, interleaved={self.interleaved}"


def sinusoidal(options: SinusoidalOptions, site: PositionSite) -> nn.Module:
    """Sines and cosines in turn."""
    return _sinusoidal(options, site, interleaved=True)


def sinusoidal_halves(options: SinusoidalOptions, site: PositionSite) -> nn.Module:
    """All sines, then all cosines."""
    return _sinusoidal(options, site, interleaved=False)


def _sinusoidal(options: SinusoidalOptions, site: PositionSite, interleaved: bool) -> nn.Module:
    return Sinusoidal(
        width=features(options, site),
        base=options.base,
        inclusive=options.last_frequency == "inclusive",
        interleaved=interleaved,
        visible=options.count == "visible",
        combine=options.combine,
        projection=projection(options, site),
        offset=options.offset,
        first_pair=options.first_pair,
    )


class Sinusoidal2d(MethodModule):
    """Sinusoidal positions of the patches of an image, Chen et al. 2021 (https://arxiv.org/abs/2104.02057), section 4.4, and
    MAE (https://arxiv.org/abs/2111.06377): a quarter of the features each for

        p(r, c) = [sin(c f_i); cos(c f_i); sin(r f_i); cos(r f_i)],    f_i = base^(-4i/M)

    of a patch in row r and column c. With `last_frequency: inclusive`, f_i = base^(-i/(M/4 - 1)), as in "Better plain ViT
    baselines" (https://arxiv.org/abs/2205.01580). To a class token nothing is added. A sequence without a grid is one row.

        y = x + p

    Adds the sinusoids of rows and columns to embeddings (B,L,M): `prefix` tokens, then the patches, row by row.
    """

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


def sinusoidal_2d(options: Sinusoidal2dOptions, site: PositionSite) -> nn.Module:
    """The sinusoids of the site's images."""
    return Sinusoidal2d(site.width, site.prefix, options.base, options.last_frequency == "inclusive")


class Learned(MethodModule):
    """Learned absolute positions, Gehring et al. 2017, section 3.1 (https://arxiv.org/abs/1705.03122):

        y[t] = x[t] + table[offset + t]                or another way to combine them

    t counts all tokens, or only the visible ones. In the second case padding uses the row before the first position,
    `table[offset - 1]` (the padding row of fairseq and RoBERTa), or row 0 if `offset` is 0.

    An image of another size than the model's has another grid of patches. The rows of the patches are then interpolated to it
    (bicubic, as in DeiT and DINO: https://arxiv.org/abs/2012.12877, section 3.3); a class token keeps its row.

    Combines a row of a table (max_len + offset, P) with each embedding of (B,L,M). Of an image, the patches have the rows
    after `prefix`, in the order of `grid`.
    """

    def __init__(
        self,
        max_len: int,
        width: int,
        offset: int,
        visible: bool,
        grid: tuple[int, int] | None = None,
        prefix: int = 0,
        combine: str = "add",
        projection: nn.Linear | None = None,
    ) -> None:
        super().__init__()
        self.max_len, self.offset, self.visible = max_len, offset, visible
        self.grid, self.prefix = grid, prefix
        self.combine, self.projection = combine, projection
        self.table = nn.Parameter(torch.empty(max_len + offset, width))

    def embed(self, x: Tensor, span: PositionRange) -> Tensor:
        """(B,L,M) -> (B,L,M), or (B,L,M+P) for `append`. Raises InputError for a position beyond the table."""
        return combined(x, self._rows(span).to(x.dtype), self.combine, self.projection)

    def _rows(self, span: PositionRange) -> Tensor:
        """The rows of the positions, (L,P), or (B,L,P) if padding shifts them."""
        if span.grid is not None and self.grid is not None and span.grid != self.grid:
            return self._interpolated(self.grid, span.grid)
        if isinstance(span, PositionAt):
            return nn.functional.embedding(self.offset + span.query_positions(), self.table)
        if span.rows is not None:
            return self._rows_of_their_own(span)
        last, exporting = span.offset + span.queries, torch.compiler.is_exporting()
        if not exporting and last > self.max_len:
            message = f"the input reaches position {last}, and the table of learned positions ends at `max_len` {self.max_len}"
            raise InputError(Diagnostic("TFK061", message, "shorten the input, or build the model with a larger `max_len`"))
        if not self.visible or span.visible is None:
            if exporting:  # The slice would limit the length of the input and that of the cache, each by itself.
                return nn.functional.embedding(self.offset + span.query_positions(), self.table)
            return self.table[self.offset + span.offset : self.offset + last]
        return self._visible_rows(span, span.visible)

    def _visible_rows(self, span: PositionRange, visible: Tensor) -> Tensor:
        visible = visible[:, span.offset : span.offset + span.queries]  # (B,L)
        rows = torch.where(visible, span.visible_positions() + self.offset, max(self.offset - 1, 0))
        return nn.functional.embedding(rows, self.table)

    def _rows_of_their_own(self, span: PositionRange) -> Tensor:
        """The rows (B,L,P) of positions that the caller gives, or that start again with each document."""
        positions = span.query_positions()  # (B,L)
        if span.visible is not None:  # the positions of padding do not count
            positions = positions.masked_fill(~span.visible[:, span.offset : span.offset + span.queries], 0)
        if positions.device.type != "cpu":
            torch._assert_async((positions < self.max_len).all(), f"TFK061: a position is beyond `max_len` {self.max_len}")
        elif not torch.compiler.is_compiling() and (last := int(positions.max())) >= self.max_len:
            message = f"the input has position {last}, and the table of learned positions ends at `max_len` {self.max_len}"
            raise InputError(Diagnostic("TFK061", message, "give smaller ones, or build the model with a larger `max_len`"))
        if self.visible and span.visible is not None:
            return self._visible_rows(span, span.visible)
        return nn.functional.embedding(positions + self.offset, self.table)

    def _interpolated(self, grid: tuple[int, int], wanted: tuple[int, int]) -> Tensor:
        """The rows of the prefix, then those of the patches on the wanted grid."""
        first = self.offset + self.prefix
        rows = self.table[first : first + grid[0] * grid[1]]
        wide = torch.promote_types(rows.dtype, torch.float32)
        image = rows.view(1, *grid, -1).permute(0, 3, 1, 2).to(wide)  # (1, M, rows, columns)
        other = nn.functional.interpolate(image, wanted, mode="bicubic", align_corners=False)
        return torch.cat([self.table[self.offset : first], other[0].flatten(1).mT.to(rows.dtype)])

    def extra_repr(self) -> str:
        return f"max_len={self.max_len}, width={self.table.shape[1]}, offset={self.offset}"


def learned(options: LearnedOptions, site: PositionSite) -> nn.Module:
    """The table as a module. `learned_unsupported` rejects a site without a number of rows before."""
    rows = learned_rows(options, site) or 0
    return Learned(
        rows,
        features(options, site),
        options.offset,
        options.count == "visible",
        site.grid,
        site.prefix,
        options.combine,
        projection(options, site),
    )
