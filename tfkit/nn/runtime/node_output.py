"""What flows between nodes while a model runs."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Padding:
    """Which tokens of a sequence are real. `visible` (B, L) bool, True for real tokens; or `lengths` (B,) integers, a promise
    that padding stands on the right; or neither, when all are real."""

    visible: Tensor | None = None
    lengths: Tensor | None = None

    def as_visible(self, length: int) -> Tensor | None:
        """(B, L) bool, or None when all tokens are real."""
        if self.visible is not None or self.lengths is None:
            return self.visible
        return torch.arange(length, device=self.lengths.device) < self.lengths[:, None]


@dataclass(frozen=True)
class NodeOutput:
    """The output of a node: `tensor` (B, L, M) with its padding, or (B, M) once pooled. `ids` (B, L) are the token ids at the
    start of the sequence, `layers` the (B, L, M) tensors before and after every layer of a stack, kept only where read."""

    tensor: Tensor
    padding: Padding
    ids: Tensor | None = None
    layers: tuple[Tensor, ...] | None = None
