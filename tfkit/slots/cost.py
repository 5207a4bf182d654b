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
    torch's FlopCounterMode does and only for matrix products, `elements` is the number of activation values that a backward
    pass needs kept.
    """

    term: str
    flops: int
    elements: int

    def times(self, number: int) -> Cost:
        return Cost(self.term, self.flops * number, self.elements * number)
