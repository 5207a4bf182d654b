"""Several hypotheses per sentence, their common beginnings stored once.

The tokens that the k hypotheses of a sentence have made form a tree. A step appends k keys to the cache of the sentence, one
per hypothesis, and a hypothesis sees those on its way to the root: which ones is a mask, so when hypotheses are chosen and
dropped only the mask changes, and no key is moved. Hypotheses are queries of their sentence: what a memory has to offer, the
encoder's output with its keys and values, is there once per sentence too.

Beams soon descend from one hypothesis of a few steps ago, and the other branches are dead: whenever the slots have doubled,
those that nobody sees any more are taken out, so that a sentence keeps little more than its length.

    row s * k + j of a step      hypothesis j of sentence s
    seen[s, j, slot]             whether the token in a slot is one of hypothesis j, or of the prompt
    places[s, slot]              the position of the token in a slot
"""

from __future__ import annotations

import torch
from torch import Tensor

from ...attention.rendering import dense_bias
from ...attention.types import Bias, DenseBias, Mask, Shapes

CROWDED = 6
"""Steps after which dead branches are looked for first."""


class BeamTree:
    """`beams` k; `seen` (S, k, slots) bool and `places` (S, slots), without the step under way."""

    def __init__(self, beams: int, seen: Tensor, places: Tensor) -> None:
        self.beams, self.seen, self.places = beams, seen, places
        self.crowded = seen.shape[2] + CROWDED * beams

    @property
    def slots(self) -> int:
        return self.seen.shape[2]

    def grown(self) -> Tensor:
        """`seen` (S, k, slots + k) with the k new tokens, each of which its own hypothesis sees."""
        own = torch.eye(self.beams, dtype=torch.bool, device=self.seen.device)
        return torch.cat([self.seen, own.expand(self.seen.shape[0], -1, -1)], 2)

    def grown_places(self, position: int) -> Tensor:
        """`places` (S, slots + k) with the new tokens at `position`."""
        return torch.nn.functional.pad(self.places, (0, self.beams), value=position)

    def remember(self, position: int) -> None:
        """The step at `position` is done: its tokens are seen from now on."""
        self.seen, self.places = self.grown(), self.grown_places(position)

    def reorder(self, rows: Tensor, kept: Tensor | None) -> None:
        """Go on with the hypotheses `rows` (S' * k,), each of which stays in its sentence, one of `kept` (S',)."""
        slots = self.slots
        self.seen = self.seen.view(-1, slots).index_select(0, rows).view(-1, self.beams, slots)
        if kept is not None:
            self.places = self.places.index_select(0, kept)

    def cleared(self) -> Tensor | None:
        """Forget the slots that nobody sees, where there may be many: gives the slots (S, slots') that stay, some of them dead
        where sentences keep different numbers; None where all stay."""
        if self.slots < self.crowded:
            return None
        alive = self.seen.any(1)
        most = int(alive.sum(1).max())
        self.crowded = max(2 * most, most + CROWDED * self.beams)
        if most == self.slots:
            return None
        stay = (~alive).to(torch.int8).argsort(dim=1, stable=True)[:, :most]
        self.seen = self.seen.gather(2, stay[:, None].expand(-1, self.beams, -1))
        self.places = self.places.gather(1, stay)
        return stay

    def fold_beams(self, rows: Tensor) -> Tensor:
        """(S * k, H, 1, D), a row per hypothesis, as (S, H, k, D), a query per hypothesis."""
        return rows.reshape(-1, self.beams, rows.shape[1], rows.shape[3]).transpose(1, 2)

    def unfold_beams(self, queries: Tensor) -> Tensor:
        """(S, H, k, D) as (S * k, H, 1, D)."""
        S, H, k, D = queries.shape
        return queries.transpose(1, 2).reshape(S * k, H, 1, D)

    def mask(self, window: tuple[int | None, int | None] | None, position: int) -> Mask:
        """What hypotheses at `position` see: their own tokens, of these the ones in the window."""
        seen = self.grown()
        if window is not None and window[0] is not None:
            seen = seen & (self.grown_places(position) >= position - window[0])[:, None]
        return Mask(visible=seen[:, None])

    def bias(self, bias: Bias, shapes: Shapes, position: int, cross: bool) -> DenseBias:
        """The bias of rows at `position`, `shapes` theirs, as one of queries: over the slots, or over the keys of a memory."""
        values = dense_bias(bias, position, shapes)
        values = values if values.shape[0] == 1 else self.fold_beams(values)
        if cross:
            return DenseBias(values)
        places = self.grown_places(position)[:, None, None]
        S, slots = places.shape[0], places.shape[3]
        _, H, queries, _ = values.shape
        values = values.expand(S, H, queries, shapes.keys)
        return DenseBias(values.gather(3, places.expand(S, H, queries, slots)))

    def weights(self, weights: Tensor, position: int, cross: bool) -> Tensor:
        """(S, H, k, slots) as (S * k, H, 1, positions). At every position one slot has a weight, the others have 0."""
        if cross:
            return self.unfold_beams(weights)
        places = self.grown_places(position)[:, None, None].expand_as(weights)
        return self.unfold_beams(weights.new_zeros(*weights.shape[:3], position + 1).scatter_add(3, places, weights))
