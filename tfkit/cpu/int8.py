"""Products of int8 weights and activations: y_rj = s_r s'_j sum_k q_rk q'_jk

s'_j = max_k |w_jk| / 127 is the scale of an output channel, s_r = max_k |x_rk| / n that of a row of activations; q' and q are
the numbers divided by their scale and rounded to integers. The sum is exact, so a row gives the same bits alone and in a batch.

n is 127 where the processor adds products of bytes in 32 bits (VNNI, AMX), and smaller where it adds them in 16 bits first. The
kernels are entries of plugins. Each is compared with the exact sum of its largest inputs before it is used.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache
from typing import Any

import torch
from torch import Tensor

from ..errors import PluginError
from ..slots.lazy import load
from ..slots.processor_kernels import Int8Kernel
from .instruction_set import allowed

LEVELS = 127
"""Largest integer of a weight."""
SMALLEST, LARGEST = 1e-30, 1e30
"""A row or a channel with smaller numbers only has the scale of `SMALLEST`. A weight with larger numbers than `LARGEST` stays
float32."""
MIN_ELEMENTS = 2**17
"""Smaller weights stay float32, unless a kernel is fast for them: their products are faster (bench/int8.py)."""
HEAD = 16
"""The table of a head is larger by this factor: to compute the largest logits again takes as long as a small product."""
MAX_INNER = 60_000
"""Above this number of input features a sum may exceed 32 bits."""


class Int8Weight:
    """A weight (out, in) as int8 integers with a scale for each output channel.

    Args:
        weight: (out, in) float32, finite.
        kernel: how products are computed.
    """

    def __init__(self, weight: Tensor, kernel: Int8Kernel) -> None:
        self.outer, self.inner = weight.shape
        self.how, self.multiply = kernel.summary, load(kernel.multiply)
        with torch.no_grad():
            scales = weight.abs().amax(1).clamp_(min=SMALLEST).div_(LEVELS)
            integers = weight.div(scales[:, None]).round_().clamp_(-LEVELS, LEVELS).to(torch.int8)
            self.packed = load(kernel.pack)(integers, scales)

    def product(self, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """x W^T + b. A row of zeros gives the bias. Rows with NaN or infinity are multiplied in float32.

        Args:
            x: (N, in) float32.
            bias: (out,), or None.

        Returns:
            (N, out)
        """
        if not x.numel():
            return x.new_zeros(len(x), self.outer)
        y: Tensor = self.multiply(x, self.packed, bias)
        return y


def is_finite(weight: Tensor) -> bool:
    """Whether the numbers of a weight can be scaled."""
    return bool(weight.detach().abs().amax() < LARGEST)


def is_large(weight: Tensor, times: int = 1, kernel: Int8Kernel | None = None) -> bool:
    """Whether a weight (out, in) has `times` the numbers from which int8 is faster, and no sum exceeds 32 bits."""
    least = MIN_ELEMENTS if kernel is None else min(MIN_ELEMENTS, kernel.min_elements)
    return weight.numel() >= least * times and weight.shape[1] <= MAX_INNER


def fastest(kernels: Iterable[Int8Kernel]) -> Int8Kernel | None:
    """The fastest kernel that works here; None if this processor has no instructions for int8, or torch lacks the functions.

    Args:
        kernels: the installed ones.
    """
    return next((kernel for kernel in sorted(kernels, key=lambda kernel: kernel.relative_time) if is_supported(kernel)), None)


@cache
def is_supported(kernel: Int8Kernel) -> bool:
    """Whether this processor has the instructions of a kernel, and its sums are exact here."""
    instructions = capabilities()
    return all(instructions.get(name) for name in kernel.needs) and is_exact(kernel)


def capabilities() -> dict[str, Any]:
    """The instruction sets of the processor by name, as torch knows them and as far as they are allowed."""
    try:
        return allowed(torch.cpu.get_capabilities())
    except (AttributeError, RuntimeError):
        return {}


def is_exact(kernel: Int8Kernel) -> bool:
    """Whether sums of the largest inputs are exact: a kernel that cuts sums off at 16 bits is not."""
    rows = torch.full((3, 128), float(kernel.levels), device="cpu")
    rows[1] *= -1
    rows[2, ::2] = 0
    integers = torch.full((16, 128), LEVELS, dtype=torch.int8, device="cpu")
    integers[1::2] = -LEVELS
    integers[::3, ::5] = 1
    try:
        with torch.device("cpu"):  # a kernel may make tensors without naming a device
            y = load(kernel.multiply)(rows.clone(), load(kernel.pack)(integers, torch.ones(16, device="cpu")), None)
    except (AttributeError, PluginError, RuntimeError, TypeError, ValueError):
        return False
    return torch.equal(y, rows @ integers.float().t())
