"""int8 products of oneDNN and FBGEMM, by private functions of torch.

Both know no rows, so that rows are scaled around them: y_r = s_r (x_r / s_r) W^T + b.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from .int8 import SMALLEST

INTEGER = 1.5 * 2**23
"""Adding this rounds to the nearest integer, which the last bits then hold: from 2^23 to 2^24 float32 has no fractions."""
ONEDNN_LEVELS = 127

OneDnnWeight = tuple[Tensor, Tensor, Tensor]
"""The packed integers, and the scales and the zero points of the channels."""


def onednn_pack(integers: Tensor, scales: Tensor) -> OneDnnWeight:
    """A weight (out, in) and its scales (out,) in oneDNN's layout."""
    packed = torch.ops.onednn.qlinear_prepack(integers, None)
    return packed, scales, torch.zeros(len(scales), dtype=torch.int64, device="cpu")


def onednn_multiply(x: Tensor, packed: OneDnnWeight, bias: Tensor | None) -> Tensor:
    """x (N, in) W^T + b (out,) -> (N, out)."""
    weight, scales, zeros = packed

    def product(rows: Tensor) -> Tensor:
        middle = ONEDNN_LEVELS + 1
        unsigned = rows.add_(INTEGER + middle).view(torch.int32).to(torch.uint8)
        y: Tensor = torch.ops.onednn.qlinear_pointwise(
            unsigned, 1.0, middle, weight, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
        )
        return y

    return _scaled_product(x, bias, ONEDNN_LEVELS, product)


def fbgemm_pack(integers: Tensor, scales: Tensor) -> Any:
    """A weight (out, in) and its scales (out,) in FBGEMM's layout."""
    zeros = torch.zeros(len(scales), dtype=torch.int64, device="cpu")
    engine = torch.backends.quantized.engine
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that quantised tensors will go
        torch.backends.quantized.engine = "fbgemm"
        try:
            weight = torch._make_per_channel_quantized_tensor(integers, scales.double(), zeros, 0)
            return torch.ops.quantized.linear_prepack(weight, None)
        finally:
            torch.backends.quantized.engine = engine


def fbgemm_multiply(levels: int, x: Tensor, packed: Any, bias: Tensor | None) -> Tensor:
    """x (N, in) W^T + b (out,) -> (N, out), with activations from -levels to levels."""

    def product(rows: Tensor) -> Tensor:
        y: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(rows, 1.0, levels + 1, packed)
        return y

    return _scaled_product(x, bias, levels, product)


fbgemm_multiply_vnni, fbgemm_multiply_avx2 = partial(fbgemm_multiply, 127), partial(fbgemm_multiply, 63)


def _scaled_product(x: Tensor, bias: Tensor | None, levels: int, multiply: Callable[[Tensor], Tensor]) -> Tensor:
    """x W^T + b.

    Args:
        x: (N, in)
        bias: (out,), or None.
        levels: the largest integer of an activation.
        multiply: rows (N, in) between -levels and levels, which it may overwrite -> (N, out), the products of the rounded rows
            times the scales of the channels.

    Returns:
        (N, out). Rows with NaN or infinity are multiplied in float32.
    """
    largest = x.abs().amax(1, keepdim=True)  # (N, 1)
    scales = largest.clamp(min=SMALLEST).div_(levels)
    y = multiply(x / scales).mul_(scales)
    if not math.isfinite(float(largest.max())):
        rows = ~largest[:, 0].isfinite()
        unit = torch.eye(x.shape[1], device="cpu")
        weight = multiply(levels * unit).div_(levels).t()  # (out, in), as the products of other rows use it
        y[rows] = functional.linear(x[rows], weight)
    return y if bias is None else y.add_(bias)
