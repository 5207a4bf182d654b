"""The methods of a position module. The `acts` of its entry declare which of them it has.

    embeddings      embed(x (B,L,M), span) -> (B,L,M), or (B,L,M + `widens` of its entry)
    queries_keys    prepare(span) -> tables; rotate(query (B,H,Q,D), key (B,G,N,D), tables) -> the same two shapes
    scores          prepare(span) -> tables; bias(query (B,H,Q,D), tables, scale) -> Bias

A stack calls `prepare` once per forward pass, and all layers that use the scheme share the result. Keys are rotated before they
enter a cache. A bias that does not depend on the query is computed once per stack, with the query of the first layer.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import Diagnostic, InputError


@dataclass(frozen=True)
class PositionRange:
    """The positions of one call.

    Args:
        queries: number of queries Q, at positions `offset` to `offset + queries - 1`.
        keys: number of keys K, cached ones included.
        offset: position of the first query.
        key_start: position of the first key that is new in this call.
        device: where tables are needed.
        dtype: the dtype of queries and keys.
        visible: (B, K) bool, False for padding; None if no token is padding.
        grid: the patches of this image, in rows and columns; None for other inputs.
        rows: (B, K) integers, the positions of the tokens of each row if they are not 0, 1, 2, ...; only for schemes that
            declare `row_positions`.
        restarts: `rows` starts again at 0 with each document of a row. No query sees another document, so distances stay those
            of the indices.
    """

    queries: int
    keys: int
    offset: int
    key_start: int
    device: torch.device
    dtype: torch.dtype
    visible: Tensor | None = None
    grid: tuple[int, int] | None = None
    rows: Tensor | None = None
    restarts: bool = False

    @property
    def is_whole(self) -> bool:
        """Whether the new keys are at the positions of the queries."""
        return (self.offset, self.offset + self.queries) == (self.key_start, self.keys)

    def query_positions(self) -> Tensor:
        """The positions of the queries.

        Returns:
            (Q,) integers; (B, Q) if rows have positions of their own.
        """
        return self._indices() if self.rows is None else self.rows[:, self.offset : self.offset + self.queries]

    def key_positions(self) -> Tensor:
        """The positions of the new keys.

        Returns:
            (keys - key_start,) integers; (B, keys - key_start) if rows have positions of their own.
        """
        if self.rows is None:
            return torch.arange(self.key_start, self.keys, device=self.device)
        return self.rows[:, self.key_start : self.keys]

    @property
    def has_own_distances(self) -> bool:
        """Whether the distance of a query and a key is another than that of their indices."""
        return self.rows is not None and not self.restarts

    def distances(self) -> Tensor:
        """Position of the key - position of the query.

        Returns:
            (Q, K) integers; (B, 1, Q, K) with `has_own_distances`.
        """
        if self.rows is None or self.restarts:
            return torch.arange(self.keys, device=self.device) - self._indices()[:, None]
        return (self.rows[:, None, : self.keys] - self.query_positions()[:, :, None])[:, None]

    def _indices(self) -> Tensor:
        """(Q,) the places of the queries in their rows."""
        return torch.arange(self.offset, self.offset + self.queries, device=self.device)

    def visible_positions(self) -> Tensor:
        """The positions of the queries if padding does not count.

        Returns:
            (B, Q) integers, the number of tokens before each query (in its document) that are not padding, or the positions of
            its row; (Q,) if no token is padding and no row has positions of its own.
        """
        if self.visible is None or self.has_own_distances:
            return self.query_positions()
        counted = self.visible.cumsum(1) - self.visible.to(torch.int64)
        if self.rows is not None:
            first = torch.arange(self.keys, device=self.device) - self.rows  # (B, K) where the document of a token starts
            counted = counted - counted.gather(1, first)
        return counted[:, self.offset : self.offset + self.queries]


class PositionAt(PositionRange):
    """One query, and one new key, at a position that is a tensor: of a decoding step that is captured once and runs at every
    position. A scheme that asks for the position as a number is refused, because the capture would keep the number of its
    first run.

    Args:
        place: (1,) int64, the position.
        keys: number of keys, those of later positions included, which the mask hides.
        dtype: the dtype of queries and keys.
    """

    place: Tensor

    def __init__(self, place: Tensor, keys: int, dtype: torch.dtype) -> None:
        known = {
            "place": place, "queries": 1, "keys": keys, "device": place.device, "dtype": dtype, "visible": None, "grid": None,
            "rows": None, "restarts": False,
        }  # fmt: skip
        for name, value in known.items():
            object.__setattr__(self, name, value)

    def __getattr__(self, name: str) -> int:
        if name in ("offset", "key_start"):
            message = f"a position scheme reads `{name}` as a number, which a captured step does not have"
            raise InputError(Diagnostic("TFK063", message, "leave CUDA graphs out, or use `query_positions()` in the scheme"))
        raise AttributeError(name)

    @property
    def is_whole(self) -> bool:
        return True

    def _indices(self) -> Tensor:
        return self.place

    def key_positions(self) -> Tensor:
        """The position of the new key.

        Returns:
            (1,) integers.
        """
        return self.place
