"""What a position module is asked for while a model runs; an entry declares by `acts` which methods its module has.

    embeddings      embed(x (B,L,M), span) -> (B,L,M)
    queries_keys    prepare(span) -> tables; rotate(query (B,H,Q,D), key (B,G,N,D), tables) -> the same two shapes
    scores          prepare(span) -> tables; bias(query (B,H,Q,D), tables, scale) -> Bias

`prepare` is called once per stack and forward, and its result is shared by the layers that share the scheme. Keys are rotated
once, when they enter a cache. A bias that does not read the query is asked for once per stack, with the first layer's query.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class PositionRange:
    """Which positions a call covers: `queries` queries from position `offset` on, against `keys` keys in all, of which those
    from `key_start` on are new in this call. `visible` (B, keys) bool marks tokens that are not padding, None for all."""

    queries: int
    keys: int
    offset: int
    key_start: int
    device: torch.device
    dtype: torch.dtype
    visible: Tensor | None = None

    def query_positions(self) -> Tensor:
        """(Q,) integers."""
        return torch.arange(self.offset, self.offset + self.queries, device=self.device)

    def key_positions(self) -> Tensor:
        """(keys - key_start,) integers."""
        return torch.arange(self.key_start, self.keys, device=self.device)

    def visible_positions(self) -> Tensor:
        """(B, Q) or (Q,) integers: the number of visible tokens before each query, padding not counted."""
        if self.visible is None:
            return self.query_positions()
        counted = self.visible.cumsum(1) - self.visible.to(torch.int64)
        return counted[:, self.offset : self.offset + self.queries]
