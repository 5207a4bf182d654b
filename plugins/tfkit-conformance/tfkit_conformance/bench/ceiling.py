"""The ceilings of this device: the products per second of one large matrix product, the bytes per second of one large copy.

Both are measured in the same run, before the cells and after; the larger of the two medians counts.
"""

from __future__ import annotations

import statistics

import torch
from torch import Tensor

from .timer import Clock

ROUNDS = 7
SIDE = {"cuda": 8192, "cpu": 1536}
COPIED = {"cuda": 2 << 30, "cpu": 256 << 20}
"""Bytes that are read, and as many that are written."""


def ceiling_of(clock: Clock, dtype: torch.dtype, device: str) -> dict[str, float]:
    """`flops`, in operations per second (2 n^3 for a product of n x n matrices) in the dtype, and `bytes` per second read and
    written."""
    kind = torch.device(device).type
    side = SIDE[kind]
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    product = torch.empty(side, side, dtype=dtype, device=device)
    read = torch.ones(COPIED[kind], dtype=torch.uint8, device=device)
    written = torch.empty_like(read)

    def multiply() -> Tensor:
        return torch.matmul(left, right, out=product)

    def copy() -> Tensor:
        return written.copy_(read)

    found = {}
    for name, step, work in (("flops", multiply, 2 * side**3), ("bytes", copy, 2 * read.numel())):
        for _ in range(2):
            step()
        found[name] = work / statistics.median(clock.time(step) for _ in range(ROUNDS))
    return found


def higher(first: dict[str, float], second: dict[str, float]) -> dict[str, float]:
    """The larger of two measurements, one by one."""
    return {name: max(first.get(name, 0.0), second.get(name, 0.0)) for name in {**first, **second}}
