"""What a part costs for a given batch, said without torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """The batch: `batch` rows, `queries` positions of the sequence itself, `keys` positions of what it reads (its memory in
    cross-attention, itself in self-attention)."""

    batch: int
    queries: int
    keys: int


@dataclass(frozen=True)
class Cost:
    """One term of a node's cost in one forward pass.

    `term` names it (`projections`, `attention`, `ffn`, `logits`, `embedding`, ...), `flops` counts a multiply-add as two, as
    torch's FlopCounterMode does and only for matrix products, `elements` estimates how many activation values live from the
    forward to the backward pass with the eager backend: what it keeps and what the node gives out, without dropout's masks.
    """

    term: str
    flops: int
    elements: int

    def times(self, number: int) -> Cost:
        return Cost(self.term, self.flops * number, self.elements * number)
