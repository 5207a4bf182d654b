"""int8 products of FBGEMM, by private functions of torch."""

from __future__ import annotations

import warnings
from functools import partial
from typing import Any

import torch
from torch import Tensor

from .scaled import scaled_product


def pack(integers: Tensor, scales: Tensor) -> Any:
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


def multiply(levels: int, x: Tensor, packed: Any, bias: Tensor | None) -> Tensor:
    """x (N, in) W^T + b (out,) -> (N, out), with activations from -levels to levels."""

    def product(rows: Tensor) -> Tensor:
        y: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(rows, 1.0, levels + 1, packed)
        return y

    return scaled_product(x, bias, levels, product)


multiply_vnni, multiply_avx2 = partial(multiply, 127), partial(multiply, 63)
