"""float32 products with packed weights, y = x W^T + b (../source/float32.h)."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from ._kernels import fingerprints, float32_product
from .int8 import readable

FINGERPRINT = 64
"""Numbers of a fingerprint, as in ../source/kernels.h."""


class Packed(NamedTuple):
    """A weight (out, in) in panels.

    Args:
        panels: float32 (ceil(out / width), in, width), zeros beyond the last channel; the width is 32 with AVX-512, else 16.
        outer: output channels.
        inner: input features.
    """

    panels: Tensor
    outer: int
    inner: int


def pack(avx512: bool, weight: Tensor) -> Packed:
    """Lay a weight out in panels.

    Args:
        avx512: whether the kernel uses AVX-512; otherwise AVX2.
        weight: float32 (out, in)

    Returns:
        The packed weight.
    """
    (outer, inner), width = weight.shape, 32 if avx512 else 16
    whole = torch.nn.functional.pad(weight.detach(), (0, 0, 0, -outer % width))
    return Packed(whole.view(len(whole) // width, width, inner).transpose(1, 2).contiguous(), outer, inner)


def multiply(avx512: bool, x: Tensor, packed: Packed, bias: Tensor | None) -> Tensor:
    """x W^T + b.

    Args:
        avx512: as for `pack`.
        x: float32 (N, in)
        packed: the weight.
        bias: float32 (out,), or None.

    Returns:
        float32 (N, out)

    Raises:
        ValueError: a shape, a dtype or a device is another, or the weight was packed for other instructions.
    """
    x, bias = readable(x, bias, packed.inner, packed.outer)
    if packed.panels.shape[2] != (32 if avx512 else 16):
        raise ValueError(f"the weight was packed in panels of {packed.panels.shape[2]}, for other instructions")
    y = torch.empty(len(x), packed.outer, device="cpu")
    float32_product(
        avx512, x.data_ptr(), y.data_ptr(), packed.panels.data_ptr(), 0 if bias is None else bias.data_ptr(),
        len(x), x.stride(0), packed.inner, packed.outer,
    )  # fmt: skip
    return y


def fingerprints_of(avx512: bool, weights: Sequence[Tensor]) -> Tensor:
    """Numbers that change with every number of a weight.

    Args:
        avx512: as for `pack`.
        weights: W of them, float32, of any shape.

    Returns:
        int32 (W, 64)
    """
    contiguous = [weight if weight.is_contiguous() else weight.detach().contiguous() for weight in weights]
    places = array("q", [number for weight in contiguous for number in (weight.data_ptr(), weight.numel())])
    lanes = torch.empty(len(contiguous), FINGERPRINT, dtype=torch.int32, device="cpu")
    fingerprints(avx512, len(contiguous), places.buffer_info()[0], lanes.data_ptr())
    return lanes


pack_avx2, pack_avx512 = partial(pack, False), partial(pack, True)
multiply_avx2, multiply_avx512 = partial(multiply, False), partial(multiply, True)
fingerprints_avx2, fingerprints_avx512 = partial(fingerprints_of, False), partial(fingerprints_of, True)
