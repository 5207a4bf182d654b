"""What flows between nodes while a model runs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor


@dataclass(frozen=True)
class Padding:
    """Which tokens of a sequence are real. `visible` (B, L) bool, True for real tokens; or `lengths` (B,) integers, a promise
    that padding stands on the right; or neither, when all are real."""

    visible: Bool[Tensor, "B L"] | None = None
    lengths: Int[Tensor, " B"] | None = None

    def as_visible(self, length: int) -> Bool[Tensor, "B {length}"] | None:
        """(B, L) bool, or None when all tokens are real."""
        if self.visible is not None or self.lengths is None:
            return self.visible
        return torch.arange(length, device=self.lengths.device) < self.lengths[:, None]


@dataclass(frozen=True)
class NodeOutput:
    """The output of a node: `tensor` (B, L, M) with its padding, or (B, M) once pooled. `ids` (B, L) are the token ids at the
    start of the sequence, `layers` the (B, L, M) tensors before and after every layer of a stack, kept only where read."""

    tensor: Float[Tensor, "B *L M"]
    padding: Padding
    ids: Int[Tensor, "B all"] | None = None
    layers: tuple[Float[Tensor, "B *L M"], ...] | None = None
