"""Products of int8 weights and activations: y_rj = s_r s'_j sum_k q_rk q'_jk

s'_j = max_k |w_jk| / 127 is the scale of an output channel, s_r = max_k |x_rk| / n that of a row of activations; q' and q are
the numbers divided by their scale and rounded to integers. The sum is exact, so a row gives the same bits alone and in a batch.

n is 127 where the processor adds products of bytes in 32 bits (AVX-512 VNNI, AMX). AVX2 adds pairs of products in 16 bits
first, and 2 * 255 * 127 does not fit: there n is 63, the bytes are at most 127, and no sum is cut off.

The kernels are private functions of torch. Each is compared with the exact sum of its largest inputs before it is used.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

LEVELS = 127
"""Largest integer of a weight."""
SMALLEST, LARGEST = 1e-30, 1e30
"""A row or a channel with smaller numbers only has the scale of `SMALLEST`. A weight with larger numbers than `LARGEST` stays
float32."""
MIN_ELEMENTS = 2**17
"""Smaller weights stay float32: their products are faster (bench/int8.py)."""
HEAD = 16
"""The table of a head is larger by this factor: to compute the largest logits again takes as long as a small product."""
MAX_INNER = 60_000
"""Above this number of input features a sum may exceed 32 bits."""
INTEGER = 1.5 * 2**23
"""Adding this rounds to the nearest integer, which the last bits then hold: from 2^23 to 2^24 float32 has no fractions."""

Packed = Any
"""A weight in the layout of its kernel."""


@dataclass(frozen=True)
class Int8Kernel:
    """One way to multiply int8 matrices.

    Args:
        name: the library and the instructions, as `tfkit plan` and `tfkit doctor` print them.
        levels: largest integer of an activation.
        needs: instruction sets, as `torch.cpu.get_capabilities` names them.
        pack: integers (out, in) int8 and their scales (out,) -> the packed weight.
        multiply: rows (N, in) float32 between -levels and levels, which it may overwrite, and the packed weight -> (N, out)
            float32, the sums times the scales of the channels. It rounds the rows to integers.
    """

    name: str
    levels: int
    needs: tuple[str, ...]
    pack: Callable[[Tensor, Tensor], Packed]
    multiply: Callable[[Tensor, Packed, int], Tensor]


class Int8Weight:
    """A weight (out, in) as int8 integers with a scale for each output channel.

    Args:
        weight: (out, in) float32, finite.
        kernel: how products are computed.
    """

    def __init__(self, weight: Tensor, kernel: Int8Kernel) -> None:
        self.kernel, (self.outer, self.inner) = kernel, weight.shape
        self.how = kernel.name
        with torch.no_grad():
            scales = weight.abs().amax(1).clamp_(min=SMALLEST).div_(LEVELS)
            integers = weight.div(scales[:, None]).round_().clamp_(-LEVELS, LEVELS).to(torch.int8)
            self.packed = kernel.pack(integers, scales)

    def product(self, x: Tensor) -> Tensor:
        """x W^T. A row of zeros gives zeros. Rows with NaN or infinity are multiplied in float32.

        Args:
            x: (N, in) float32.

        Returns:
            (N, out)
        """
        if not x.numel():
            return x.new_zeros(len(x), self.outer)
        largest = x.abs().amax(1, keepdim=True)  # (N, 1)
        scales = largest.clamp(min=SMALLEST).div_(self.kernel.levels)
        found = self.kernel.multiply(x / scales, self.packed, self.kernel.levels).mul_(scales)
        if not math.isfinite(float(largest.max())):
            rows = ~largest[:, 0].isfinite()
            found[rows] = functional.linear(x[rows], self.dequantised())
        return found

    def dequantised(self) -> Tensor:
        """The weight that products use, (out, in): the integers times the scale of their channel."""
        levels = self.kernel.levels
        return self.kernel.multiply(levels * torch.eye(self.inner), self.packed, levels).div_(levels).t()


def is_finite(weight: Tensor) -> bool:
    """Whether the numbers of a weight can be scaled."""
    return bool(weight.detach().abs().amax() < LARGEST)


def is_large(weight: Tensor, times: int = 1) -> bool:
    """Whether a weight (out, in) has `times` the numbers from which int8 is faster, and no sum exceeds 32 bits."""
    return weight.numel() >= MIN_ELEMENTS * times and weight.shape[1] <= MAX_INNER


@cache
def kernel_here() -> Int8Kernel | None:
    """The int8 kernel of this processor; None if it has no instructions for int8, or this torch lacks the functions."""
    return next((kernel for kernel in KERNELS if is_supported(kernel)), None)


def is_supported(kernel: Int8Kernel) -> bool:
    """Whether this processor has the instructions of a kernel, and its sums are exact here."""
    found = capabilities()
    return all(found.get(name) for name in kernel.needs) and is_exact(kernel)


def capabilities() -> dict[str, Any]:
    """What torch knows about the processor: instruction sets by name."""
    try:
        return dict(torch.cpu.get_capabilities())
    except (AttributeError, RuntimeError):
        return {}


def is_exact(kernel: Int8Kernel) -> bool:
    """Whether sums of the largest inputs are exact: a kernel that cuts sums off at 16 bits is not."""
    rows = torch.full((3, 128), float(kernel.levels))
    rows[1] *= -1
    rows[2, ::2] = 0
    integers = torch.full((16, 128), LEVELS, dtype=torch.int8)
    integers[1::2] = -LEVELS
    integers[::3, ::5] = 1
    try:
        found = kernel.multiply(rows.clone(), kernel.pack(integers, torch.ones(16)), kernel.levels)
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return False
    return torch.equal(found, rows @ integers.float().t())


def _pack_onednn(integers: Tensor, scales: Tensor) -> Packed:
    packed = torch.ops.onednn.qlinear_prepack(integers, None)
    return packed, scales, torch.zeros(len(scales), dtype=torch.int64)


def _multiply_onednn(rows: Tensor, packed: Packed, levels: int) -> Tensor:
    weight, scales, zeros = packed
    middle = levels + 1
    unsigned = rows.add_(INTEGER + middle).view(torch.int32).to(torch.uint8)
    found: Tensor = torch.ops.onednn.qlinear_pointwise(
        unsigned, 1.0, middle, weight, scales, zeros, None, 1.0, 0, torch.float32, "none", [], ""
    )
    return found


def _pack_fbgemm(integers: Tensor, scales: Tensor) -> Packed:
    zeros = torch.zeros(len(scales), dtype=torch.int64)
    engine = torch.backends.quantized.engine
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that quantised tensors will go
        torch.backends.quantized.engine = "fbgemm"
        try:
            weight = torch._make_per_channel_quantized_tensor(integers, scales.double(), zeros, 0)
            return torch.ops.quantized.linear_prepack(weight, None)
        finally:
            torch.backends.quantized.engine = engine


def _multiply_fbgemm(rows: Tensor, packed: Packed, levels: int) -> Tensor:
    found: Tensor = torch.ops.quantized.linear_with_input_q_dq_qweight_dq_output_fp32(rows, 1.0, levels + 1, packed)
    return found


KERNELS = (
    Int8Kernel("oneDNN with AMX", LEVELS, ("amx_int8", "amx_tile"), _pack_onednn, _multiply_onednn),
    Int8Kernel("FBGEMM with AVX-512 VNNI", LEVELS, ("avx512_vnni",), _pack_fbgemm, _multiply_fbgemm),
    Int8Kernel("FBGEMM with AVX2", 63, ("avx2",), _pack_fbgemm, _multiply_fbgemm),
)
"""In order of preference. FBGEMM has no kernels for AMX."""
