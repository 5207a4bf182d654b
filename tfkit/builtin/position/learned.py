"""Learned absolute positions, Gehring et al. 2017, section 3.1 (https://arxiv.org/abs/1705.03122):

    y[t] = x[t] + table[offset + t]                or another way to combine them, sinusoidal.py

t counts all tokens, or only the visible ones. In the second case padding uses the row before the first position,
`table[offset - 1]` (the padding row of fairseq and RoBERTa), or row 0 if `offset` is 0.

An image of another size than the model's has another grid of patches. The rows of the patches are then interpolated to it
(bicubic, as in DeiT and DINO: https://arxiv.org/abs/2012.12877, section 3.3); a class token keeps its row.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from ...attention.positions import PositionAt, PositionRange
from ...plugin import Diagnostic, InputError
from ...plugin.model_parts import MethodModule
from ...slots.position import PositionSite
from .entries_embedding import LearnedOptions, features, learned_rows
from .sinusoidal import combined, projection


class Learned(MethodModule):
    """Combines a row of a table (max_len + offset, P) with each embedding of (B,L,M). Of an image, the patches have the rows
    after `prefix`, in the order of `grid`."""

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
        last, exporting = span.offset + span.queries, torch.compiler.is_exporting()
        if not exporting and last > self.max_len:
            message = f"the input reaches position {last}, and the table of learned positions ends at `max_len` {self.max_len}"
            raise InputError(Diagnostic("TFK061", message, "shorten the input, or build the model with a larger `max_len`"))
        if not self.visible or span.visible is None:
            if exporting:  # The slice would limit the length of the input and that of the cache, each by itself.
                return nn.functional.embedding(self.offset + span.query_positions(), self.table)
            return self.table[self.offset + span.offset : self.offset + last]
        shown = span.visible[:, span.offset : last]  # (B,L)
        rows = torch.where(shown, span.visible_positions() + self.offset, max(self.offset - 1, 0))
        return nn.functional.embedding(rows, self.table)

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


def build(options: LearnedOptions, site: PositionSite) -> nn.Module:
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
