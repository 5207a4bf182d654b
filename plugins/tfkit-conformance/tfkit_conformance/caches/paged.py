"""Two caches in plain torch that are right: pages with shared prefixes, and a ring. They are examples to read and to check.

tfkit conformance --cache tfkit_conformance.caches.paged:PagedCache
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch
from torch import Tensor


class PagedCache:
    """Positions in pages of a pool. A row is a list of pages. Rows may share pages, which are copied before a write."""

    page_size = 16

    def __init__(
        self, *, batch: int, heads: int, kv_heads: int, head_dim: int, max_length: int, dtype: torch.dtype, device: str = "cpu"
    ) -> None:  # they grow, and need neither the heads of the query nor a largest length
        self.kv_heads, self.head_dim = kv_heads, head_dim
        self.pool = torch.zeros(2, 0, self.page_size, kv_heads, head_dim, dtype=dtype, device=device)  # keys and values
        self.unused: list[int] = []
        self.uses: Counter[int] = Counter()
        self.pages: list[list[int]] = [[] for _ in range(batch)]
        self.lengths = [0] * batch

    def append(self, keys: Tensor, values: Tensor, lengths: Sequence[int]) -> None:
        both = torch.stack([keys, values]).transpose(2, 3)  # (2, B, L, G, D)
        for row, count in enumerate(lengths):
            for step in range(count):
                page, place = self._writable(row, self.lengths[row])
                self.pool[:, page, place] = both[:, row, step]
                self.lengths[row] += 1

    def attend(self, query: Tensor, scale: float) -> Tensor:
        outputs = []
        for row, length in enumerate(self.lengths):
            keys, values = self.pool[:, self.pages[row]].flatten(1, 2)[:, :length].transpose(1, 2)  # (G, n, D) each
            outputs.append(causal(query[row], keys, values, scale))
        return torch.stack(outputs)

    def reorder(self, rows: Sequence[int]) -> None:
        pages = [list(self.pages[row]) for row in rows]
        self.lengths = [self.lengths[row] for row in rows]
        self.uses.update(page for row_pages in pages for page in row_pages)
        for row_pages in self.pages:
            self._release(row_pages)
        self.pages = pages

    def branch(self, rows: Sequence[int]) -> None:
        self.reorder(rows)  # which works for any number of rows

    def truncate(self, lengths: Sequence[int]) -> None:
        for row, length in enumerate(lengths):
            needed = -(-length // self.page_size)
            self._release(self.pages[row][needed:])
            del self.pages[row][needed:]
            self.lengths[row] = length

    def free(self, rows: Sequence[int]) -> None:
        self.truncate([0 if row in rows else length for row, length in enumerate(self.lengths)])

    def _writable(self, row: int, position: int) -> tuple[int, int]:
        """The page of a position and the place in it; a page that another row reads too is copied first."""
        number, place = divmod(position, self.page_size)
        if number == len(self.pages[row]):
            self.pages[row].append(self._new_page())
        page = self.pages[row][number]
        if self.uses[page] > 1:
            copy = self._new_page()
            self.pool[:, copy] = self.pool[:, page]
            self._release([page])
            self.pages[row][number] = page = copy
        return page, place

    def _new_page(self) -> int:
        if not self.unused:
            more = self.pool.new_zeros(2, 8, *self.pool.shape[2:])
            self.unused = list(range(self.pool.shape[1], self.pool.shape[1] + 8))
            self.pool = torch.cat([self.pool, more], 1)
        page = self.unused.pop()
        self.uses[page] = 1
        return page

    def _release(self, pages: Sequence[int]) -> None:
        for page in pages:
            self.uses[page] -= 1
            if not self.uses[page]:
                self.unused.append(page)


class RingCache:
    """The last `window` positions and a few more, each at its position modulo the size of the ring."""

    window = 12
    spare = 8
    """Queries that may be asked at once see this much further back, together."""

    def __init__(
        self, *, batch: int, heads: int, kv_heads: int, head_dim: int, max_length: int, dtype: torch.dtype, device: str = "cpu"
    ) -> None:  # they grow, and need neither the heads of the query nor a largest length
        self.size = self.window + self.spare
        self.ring = torch.zeros(2, batch, self.size, kv_heads, head_dim, dtype=dtype, device=device)
        self.lengths = [0] * batch

    def append(self, keys: Tensor, values: Tensor, lengths: Sequence[int]) -> None:
        both = torch.stack([keys, values]).transpose(2, 3)
        for row, count in enumerate(lengths):
            for step in range(count):
                self.ring[:, row, self.lengths[row] % self.size] = both[:, row, step]
                self.lengths[row] += 1

    def attend(self, query: Tensor, scale: float) -> Tensor:
        outputs = []
        for row, length in enumerate(self.lengths):
            first = max(0, length - self.size)
            keys, values = self.ring[:, row, [position % self.size for position in range(first, length)]].transpose(1, 2)
            outputs.append(causal(query[row], keys, values, scale, self.window))
        return torch.stack(outputs)

    def reorder(self, rows: Sequence[int]) -> None:
        self.ring = self.ring[:, list(rows)]
        self.lengths = [self.lengths[row] for row in rows]

    def branch(self, rows: Sequence[int]) -> None:
        self.reorder(rows)


def causal(query: Tensor, keys: Tensor, values: Tensor, scale: float, window: int | None = None) -> Tensor:
    """Attention of one row: query (H, Q, D) for the last Q of n positions, keys and values (G, n, D)."""
    H, Q, _ = query.shape
    G, n, _ = keys.shape
    keys, values = (tensor.repeat_interleave(H // G, 0) for tensor in (keys, values))
    away = torch.arange(n - Q, n, device=query.device)[:, None] - torch.arange(n, device=query.device)
    seen = (away >= 0) if window is None else (away >= 0) & (away < window)
    scores = (scale * query.float() @ keys.float().mT).masked_fill(~seen, -torch.inf)
    return (torch.softmax(scores, -1) @ values.float()).to(query.dtype)
