"""What a decoding kernel with a cache offers: a class with these methods, and no type of tfkit.

    cache = make(batch=2, heads=4, kv_heads=2, head_dim=16, max_length=2048, dtype=torch.float32, device="cpu")
    cache.append(keys, values, lengths)     more positions for every row
    output = cache.attend(query, scale)     causal attention of the last positions of every row

The other methods are optional. A method that exists is checked.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor


class DecodingCache(Protocol):
    """Keys and values of B sequences that grow.

    Three attributes are optional as well. `page_size` (int) is the number of positions of a page, whose borders are walked.
    `window` (int) says that a position sees only itself and the `window - 1` before it, so that older ones may be dropped.
    `equal_lengths` (True) says that all rows always have one length.
    """

    def append(self, keys: Tensor, values: Tensor, lengths: Sequence[int]) -> None:
        """Add positions.

        Args:
            keys: (B, G, L, D).
            values: (B, G, L, D).
            lengths: how many of the L positions row b gets, the first ones; may be 0.
        """

    def attend(self, query: Tensor, scale: float) -> Tensor:
        """Causal attention. Query i of a row that holds n positions stands at position n - Q + i.

        Args:
            query: (B, H, Q, D), for the last Q positions of every row.
            scale: factor of the scores.

        Returns:
            (B, H, Q, D). A row that holds fewer than Q positions may have anything.
        """
        ...

    def reorder(self, rows: Sequence[int]) -> None:
        """Optional. Row b becomes what row rows[b] was; a row may occur several times, as in a beam search."""

    def branch(self, rows: Sequence[int]) -> None:
        """Optional. The cache goes on with len(rows) rows, and row b is what row rows[b] was: one prompt is continued several
        times, or sequences that have ended are dropped."""

    def truncate(self, lengths: Sequence[int]) -> None:
        """Optional. Row b keeps its first lengths[b] positions, as after rejected speculation."""

    def free(self, rows: Sequence[int]) -> None:
        """Optional. These rows hold nothing any more, and their memory may serve others."""
