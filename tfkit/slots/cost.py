"""The cost of a part for a given batch, without torch."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Sizes:
    """The sizes of a call.

    Args:
        batch: rows B.
        queries: positions Q of the sequence.
        keys: positions K that it attends to: those of the memory in cross-attention, its own in self-attention.
    """

    batch: int
    queries: int
    keys: int


@dataclass(frozen=True)
class Cost:
    """One term of a node's cost in one forward pass.

    Args:
        term: its name: `projections`, `attention`, `ffn`, `logits`, `embedding`, ...
        flops: operations of matrix products, a multiply-add as two, as torch's FlopCounterMode counts.
        elements: an estimate of the activation values that the eager backend keeps for the backward pass, with the outputs of
            the node, without dropout masks.
    """

    term: str
    flops: int
    elements: int

    def times(self, number: int) -> Cost:
        """The cost of several equal parts.

        Args:
            number: how many parts.

        Returns:
            The cost, multiplied.
        """
        return Cost(self.term, self.flops * number, self.elements * number)
