"""Products of int8 weights and activations, y = x W^T + b, with scaling and rounding in the kernel (../source/int8.h)."""

from __future__ import annotations

from collections.abc import Callable
from contextvars import ContextVar
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ._kernels import int8_product

PANEL = 32
"""Output channels that a kernel computes side by side."""
_AVX2, _AVX_VNNI, _AVX512_VNNI = range(3)
recording: ContextVar[Callable[..., None] | None] = ContextVar("recording", default=None)
"""Is called with what each product of this thread reads and writes, while a step is recorded."""


class Packed(NamedTuple):
    """A weight (out, in) in panels.

    Args:
        panels: int8 (ceil(out / 32), ceil(in / 4), 32, 4), zeros beyond the last channel and feature.
        scales: float32 (32 ceil(out / 32),)
        starts: int32 of that size; the sum of a channel starts here, because activations are stored with an offset.
        outer: output channels.
        inner: input features.
    """

    panels: Tensor
    scales: Tensor
    starts: Tensor
    outer: int
    inner: int


def pack(levels: int, integers: Tensor, scales: Tensor) -> Packed:
    """Lay a weight out in panels.

    Args:
        levels: the largest integer of an activation.
        integers: int8 (out, in)
        scales: float32 (out,)

    Returns:
        The packed weight.
    """
    outer, inner = integers.shape
    whole = integers.new_zeros(-(-outer // PANEL) * PANEL, -(-inner // 4) * 4)
    whole[:outer, :inner] = integers
    padded = torch.nn.functional.pad(scales, (0, len(whole) - outer))
    starts = -(levels + 1) * whole.sum(1, dtype=torch.int32)
    panels = whole.view(-1, PANEL, whole.shape[1] // 4, 4).transpose(1, 2).contiguous()
    return Packed(panels, padded, starts.to(torch.int32), outer, inner)


def readable(x: Tensor, bias: Tensor | None, inner: int, outer: int) -> tuple[Tensor, Tensor | None]:
    """x (N, inner) and a bias (outer,) as kernels read them: features side by side in memory.

    Raises:
        ValueError: a shape, a dtype or a device is another.
    """
    if x.shape[1:] != (inner,) or x.dtype != torch.float32 or not x.is_cpu:
        raise ValueError(f"x is {tuple(x.shape)} {x.dtype} on {x.device}, expected (N, {inner}) torch.float32 on cpu")
    if bias is not None and (bias.shape != (outer,) or bias.dtype != torch.float32 or not bias.is_cpu):
        raise ValueError(f"the bias is {tuple(bias.shape)} {bias.dtype} on {bias.device}, expected ({outer},)")
    return x if x.stride(1) == 1 else x.contiguous(), None if bias is None else bias.contiguous()


def multiply(variant: int, x: Tensor, packed: Packed, bias: Tensor | None) -> Tensor:
    """x W^T + b.

    Args:
        variant: the instructions.
        x: float32 (N, in)
        packed: the weight.
        bias: float32 (out,), or None.

    Returns:
        float32 (N, out)

    Raises:
        ValueError: a shape, a dtype or a device is another.
    """
    x, bias = readable(x, bias, packed.inner, packed.outer)
    y = torch.empty(len(x), packed.outer, device="cpu")
    if len(x):
        int8_product(
            variant, x.data_ptr(), y.data_ptr(), packed.panels.data_ptr(), packed.scales.data_ptr(), packed.starts.data_ptr(),
            0 if bias is None else bias.data_ptr(), len(x), x.stride(0), packed.inner, packed.outer,
        )  # fmt: skip
    record = recording.get()
    if record is not None:
        record(variant, x, y, packed, bias)
    return y


pack_127, pack_63 = partial(pack, 127), partial(pack, 63)
multiply_avx2, multiply_avx_vnni, multiply_avx512_vnni = (
    partial(multiply, variant) for variant in (_AVX2, _AVX_VNNI, _AVX512_VNNI)
)
