"""int8 products of oneDNN, by private functions of torch."""

from __future__ import annotations

import torch
from torch import Tensor

from .scaled import INTEGER, scaled_product

LEVELS = 127

Packed = tuple[Tensor, Tensor, Tensor]
"""The packed integers, and the scales and the zero points of the channels."""


def pack(integers: Tensor, scales: Tensor) -> Packed:
    """A weight (out, in) and its scales (out,) in oneDNN's layout."""
    packed = torch.ops.onednn.qlinear_prepack(integers, None)
    return packed, scales, torch.zeros(len(scales), dtype=torch.int64, device="cpu")


def multiply(x: Tensor, packed: Packed, bias: Tensor | None) -> Tensor:
    """x (N, in) W^T + b (out,) -> (N, out)."""
    weight, scales, zeros = packed

    def product(rows: Tensor) -> Tensor:
        middle = LEVELS + 1
        unsigned = rows.add_(INTEGER + middle).view(torch.int32).to(torch.uint8)
        y: Tensor = torch.ops.onednn.qlinear_pointwise(
            unsigned, 1.0, middle, weight, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return y

    return scaled_product(x, bias, LEVELS, product)
