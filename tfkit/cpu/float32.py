"""The float32 kernel of this processor: y = x W^T + b with weights that the kernel packs (`tfkit.plugin.Float32Kernel`)."""

from __future__ import annotations

from collections.abc import Iterable
from functools import cache

import torch

from ..errors import PluginError
from ..slots.lazy import load
from ..slots.processor_kernels import Float32Kernel
from .int8 import capabilities


def float32_kernel_here(kernels: Iterable[Float32Kernel]) -> Float32Kernel | None:
    """The fastest float32 kernel that works here.

    Args:
        kernels: the installed ones.

    Returns:
        Its entry, or None.
    """
    return next((kernel for kernel in sorted(kernels, key=lambda kernel: kernel.relative_time) if is_supported(kernel)), None)


@cache
def is_supported(kernel: Float32Kernel) -> bool:
    """Whether this processor has the instructions of a kernel, and a product of small integers is exact here."""
    instructions = capabilities()
    if not all(instructions.get(name) for name in kernel.needs):
        return False
    x = torch.arange(3.0 * 37, device="cpu").view(3, 37) % 11 - 5
    weight, bias = torch.arange(41.0 * 37, device="cpu").view(41, 37) % 7 - 3, torch.arange(41.0, device="cpu")
    try:
        with torch.device("cpu"):  # a kernel may make tensors without naming a device
            y = load(kernel.multiply)(x.clone(), load(kernel.pack)(weight.clone()), bias.clone())
    except (AttributeError, PluginError, RuntimeError, TypeError, ValueError):
        return False
    return torch.equal(y, x @ weight.t() + bias)
