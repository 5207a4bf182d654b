"""Costs of a component for a batch, without torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """Sizes of a batch.

    Args:
        batch: rows B.
        queries: positions of the sequence Q.
        keys: positions that attention reads K: those of the memory in cross-attention, otherwise of the sequence.
    """

    batch: int
    queries: int
    keys: int


@dataclass(frozen=True)
class Cost:
    """One term of a node's cost in one forward pass.

    Args:
        term: `projections`, `attention`, `ffn`, `logits`, `embedding`, ...
        flops: floating-point operations of matrix products; a multiply-add counts as two, as in torch's FlopCounterMode.
        elements: estimated number of activation values that live until the backward pass with the eager backend, outputs
            included, dropout masks not.
    """

    term: str
    flops: int
    elements: int

    def times(self, number: int) -> Cost:
        return Cost(self.term, self.flops * number, self.elements * number)
