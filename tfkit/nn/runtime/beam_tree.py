"""Beams of a sentence share the cache entries of common prefixes (tree attention).

The tokens of the k hypotheses of a sentence form a tree. A step appends k keys to the cache of the sentence, one per
hypothesis, and a hypothesis attends to the keys on its path to the root. A mask encodes these paths. When the search selects
hypotheses, only the mask changes; no key is copied. The hypotheses of a sentence are the queries of one batch row, so the keys
and values of the encoder's output are also stored once per sentence.

After some steps all beams descend from one recent hypothesis, and the other branches are dead. Whenever the number of slots has
doubled, the slots that no hypothesis sees are removed, so that the cache stays about as long as the sentence.

    row s * k + j of a step      hypothesis j of sentence s
    seen[s, j, slot]             whether hypothesis j sees the token in this slot
    places[s, slot]              the position of the token in this slot
"""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any

import torch
from torch import Tensor

from ...attention.rendering import dense_bias
from ...attention.types import Bias, DenseBias, Mask, Shapes

PRUNE_AFTER = 6
"""Steps before dead branches are removed for the first time."""


class SentenceRows:
    """The `beams` k hypotheses of a sentence as the queries of one row, which reads the memory of the sentence."""

    def __init__(self, beams: int) -> None:
        self.beams = beams

    def fold_beams(self, rows: Tensor) -> Tensor:
        """(S * k, H, 1, D), a row per hypothesis, as (S, H, k, D), a query per hypothesis."""
        return rows.reshape(-1, self.beams, rows.shape[1], rows.shape[3]).transpose(1, 2)

    def unfold_beams(self, queries: Tensor) -> Tensor:
        """(S, H, k, D) as (S * k, H, 1, D)."""
        S, H, k, D = queries.shape
        return queries.transpose(1, 2).reshape(S * k, H, 1, D)

    def folded(
        self,
        query: Tensor,
        bias: Bias | None,
        position: int,
        memory_keys: int | None,
        memo: dict[Hashable, Any],
        name: Hashable,
    ) -> tuple[Tensor, DenseBias | None]:
        """Queries (S * k, H, 1, D) and their bias, with a row per sentence and a query per hypothesis. `memory_keys`: the keys
        of a memory; None for self-attention. Layers share the bias of a scheme `name`: it is folded once and kept in `memo`."""
        folded = self.fold_beams(query)
        if bias is None:
            return folded, None
        cross = memory_keys is not None
        key = ("tree bias", name, cross, query.dtype)
        if name is not None and key in memo:
            return folded, memo[key]
        keys = position + 1 if memory_keys is None else memory_keys
        shapes = Shapes(query.shape[0], query.shape[1], 1, keys, query.dtype, query.device)
        of_beams = self.bias(bias, shapes, position, cross)
        if name is not None:
            memo[key] = of_beams
        return folded, of_beams

    def bias(self, bias: Bias, shapes: Shapes, position: int, cross: bool) -> DenseBias:
        """A bias of rows, as a bias of folded queries at `position`, with `cross` over the keys of a memory."""
        values = dense_bias(bias, position, shapes)
        return DenseBias(values if values.shape[0] == 1 else self.fold_beams(values))

    def weights(self, weights: Tensor, position: int, cross: bool) -> Tensor:
        """(S, H, k, K) as (S * k, H, 1, K)."""
        return self.unfold_beams(weights)


class BeamTree(SentenceRows):
    """`beams` k, `seen` (S, k, slots) bool and `places` (S, slots), without the tokens of the current step."""

    def __init__(self, beams: int, seen: Tensor, places: Tensor) -> None:
        super().__init__(beams)
        self.seen, self.places = seen, places
        self.prune_at = seen.shape[2] + PRUNE_AFTER * beams

    @property
    def slots(self) -> int:
        return self.seen.shape[2]

    def grown(self) -> Tensor:
        """`seen` with the k new tokens, (S, k, slots + k). Each hypothesis sees its own new token."""
        diagonal = torch.eye(self.beams, dtype=torch.bool, device=self.seen.device)
        return torch.cat([self.seen, diagonal.expand(self.seen.shape[0], -1, -1)], 2)

    def grown_places(self, position: int) -> Tensor:
        """`places` with the new tokens at `position`, (S, slots + k)."""
        return torch.nn.functional.pad(self.places, (0, self.beams), value=position)

    def remember(self, position: int) -> None:
        """End the step at `position`: keep its tokens."""
        self.seen, self.places = self.grown(), self.grown_places(position)

    def reorder(self, rows: Tensor, kept: Tensor | None) -> None:
        """Continue with the hypotheses `rows` (S' * k,) of the sentences `kept` (S',); a hypothesis stays in its sentence."""
        slots = self.slots
        self.seen = self.seen.view(-1, slots).index_select(0, rows).view(-1, self.beams, slots)
        if kept is not None:
            self.places = self.places.index_select(0, kept)

    def prune(self) -> Tensor | None:
        """Remove the slots that no hypothesis sees, if there may be many.

        Returns:
            The slots (S, slots') that stay, or None if all stay. Sentences that need fewer slots keep some unused ones.
        """
        if self.slots < self.prune_at:
            return None
        alive = self.seen.any(1)  # (S, slots)
        longest = int(alive.sum(1).max())
        self.prune_at = max(2 * longest, longest + PRUNE_AFTER * self.beams)
        if longest == self.slots:
            return None
        # A stable sort of 0 (alive) and 1 (dead) moves the live slots to the front, in order.
        stay = (~alive).to(torch.int8).argsort(dim=1, stable=True)[:, :longest]  # (S, slots')
        self.seen = self.seen.gather(2, stay[:, None].expand(-1, self.beams, -1))
        self.places = self.places.gather(1, stay)
        return stay

    def mask(self, window: tuple[int | None, int | None] | None, position: int) -> Mask:
        """The mask of hypotheses at `position`: their own tokens inside the window."""
        seen = self.grown()
        if window is not None and window[0] is not None:
            seen = seen & (self.grown_places(position) >= position - window[0])[:, None]
        return Mask(visible=seen[:, None])

    def bias(self, bias: Bias, shapes: Shapes, position: int, cross: bool) -> DenseBias:
        """As that of `SentenceRows`, and without `cross` over the slots."""
        folded = super().bias(bias, shapes, position, cross)
        if cross:
            return folded
        values, places = folded.values, self.grown_places(position)[:, None, None]
        S, slots = places.shape[0], places.shape[3]
        _, H, queries, _ = values.shape
        values = values.expand(S, H, queries, shapes.keys)
        return DenseBias(values.gather(3, places.expand(S, H, queries, slots)))

    def weights(self, weights: Tensor, position: int, cross: bool) -> Tensor:
        """As that of `SentenceRows`, and without `cross` (S, H, k, slots) as (S * k, H, 1, positions). One slot per position
        has a weight, the others have 0."""
        if cross:
            return super().weights(weights, position, cross)
        places = self.grown_places(position)[:, None, None].expand_as(weights)
        return self.unfold_beams(weights.new_zeros(*weights.shape[:3], position + 1).scatter_add(3, places, weights))
