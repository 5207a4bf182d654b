"""The outputs of nodes with their padding, and norms, which read it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor, nn


@dataclass(frozen=True)
class Padding:
    """The padding of a sequence, as `visible` or as `lengths`; neither if no token is padding. And how its rows are divided.

    Args:
        visible: (B, L) bool, False for padding.
        lengths: (B,) integers, the number of real tokens; all padding is on the right.
        documents: (B, L) integers, the document of each token; None if a row is one document.
        positions: (B, L) integers, the positions of the tokens if they are not 0, 1, 2, ...
        restarts: `positions` starts again at 0 with each document.
        prefixes: (B,) integers, how many tokens at the start of each row a causal stack sees from all of them.
    """

    visible: Bool[Tensor, "B L"] | None = None
    lengths: Int[Tensor, " B"] | None = None
    documents: Int[Tensor, "B L"] | None = None
    positions: Int[Tensor, "B L"] | None = None
    restarts: bool = False
    prefixes: Int[Tensor, " B"] | None = None

    def as_visible(self, length: int) -> Bool[Tensor, "B {length}"] | None:
        """The padding as a mask.

        Args:
            length: number of tokens L.

        Returns:
            (B, L) bool, False for padding; None if no token is padding.
        """
        if self.visible is not None or self.lengths is None:
            return self.visible
        return torch.arange(length, device=self.lengths.device) < self.lengths[:, None]


@dataclass(frozen=True)
class NodeOutput:
    """The output of a node.

    Args:
        tensor: (B, L, M), or (B, M) after pooling.
        padding: the padding of the sequence.
        ids: (B, L) the token ids that the sequence was computed from, all so far while decoding.
        layers: (B, L, M) before and after every layer of a stack, or (B, L, N) after every layer of a recurrent node, if they
            are read.
        states: (B, N) the last states of every layer of a recurrent encoder, which may start a decoder.
    """

    tensor: Float[Tensor, "B *L M"]
    padding: Padding
    ids: Int[Tensor, "B all"] | None = None
    layers: tuple[Float[Tensor, "B *L W"], ...] | None = None
    states: tuple[Float[Tensor, "B N"], ...] | None = None


class BatchwiseNorm(nn.Module, ABC):
    """A norm whose statistics in training are over the batch.

    In evaluation it normalises each token alone. In training its statistics are over the tokens that are not padding.
    """

    @abstractmethod
    def forward(self, x: Float[Tensor, "*batch M"], real: Bool[Tensor, "*batch"] | None = None) -> Float[Tensor, "*batch M"]:
        """The norm.

        Args:
            x: (B, L, M) or (B, M).
            real: (B, L), False for padding, which the statistics do not count; None if no token is padding.

        Returns:
            The shape and dtype of x.
        """


def normed(norm: nn.Module, x: Tensor, padding: Padding) -> Tensor:
    """Apply a norm; one over the batch does not count padding.

    Args:
        norm: a module from (..., M) to (..., M).
        x: (B, L, M), or (B, M) without padding.
        padding: the padding of the sequence.

    Returns:
        The shape of x.
    """
    if isinstance(norm, BatchwiseNorm) and norm.training:
        return norm(x, padding.as_visible(x.shape[1]))  # type: ignore[no-any-return]
    return norm(x)  # type: ignore[no-any-return]
