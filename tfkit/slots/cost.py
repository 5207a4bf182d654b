"""The cost of a part for a given batch, and the bytes that a training step keeps from its forward to its backward pass, without
torch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


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


FLOAT32_BYTES = 4
"""Bytes of a float32 number."""


@dataclass(frozen=True)
class Numbers:
    """How a step computes. Weights and the residual stream are float32; autocast makes products in a half dtype.

    Args:
        product: bytes of a number in a matrix product: 4, or 2 under autocast.
        weighted: the attention sub-layers, by name, whose backend keeps the attention weights, as `eager` does.
    """

    product: int = FLOAT32_BYTES
    weighted: frozenset[str] = frozenset()

    @property
    def autocast(self) -> bool:
        """Whether products have a half dtype. Each product then casts its own copy of its input, and keeps it."""
        return self.product < FLOAT32_BYTES


@dataclass(frozen=True)
class Kept:
    """Bytes that a node keeps in one forward pass.

    Args:
        activations: kept until the backward pass.
        checkpointed: kept if the layers of the node are computed again in the backward pass; `activations` for other nodes.
        layer: activations of its largest layer, which exist while that is computed again.
        casts: elements of weights of which autocast keeps a copy, besides those that `parameters` lists.
    """

    activations: int
    checkpointed: int
    layer: int = 0
    casts: int = 0


def kept_of_norm(tokens: int, width: int) -> int:
    """Bytes that a norm keeps: its input and two statistics of each token, in float32.

    https://docs.pytorch.org/docs/stable/generated/torch.nn.LayerNorm.html (`native_layer_norm` saves input, mean and rstd)
    """
    return tokens * (width + 2) * FLOAT32_BYTES


def kept_by_costs(costs: tuple[Cost, ...]) -> int:
    """The estimate for a part that does not say what it keeps: the elements of its costs, in float32."""
    return sum(cost.elements for cost in costs) * FLOAT32_BYTES


KeptBySublayer = Callable[[Any, Any, Sizes, Numbers], int]
