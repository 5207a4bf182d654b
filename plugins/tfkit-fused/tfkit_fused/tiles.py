"""How large the tiles of each kernel are, and how many warps and stages it runs with.

The rows are the largest tiles that fit shared memory and registers by the compiler's word (tests/test_compile.py holds them to
it); none has been timed yet.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

Shape = tuple[int, int, int, int]
"""Queries, keys, warps, stages."""


@dataclass(frozen=True)
class Row:
    """For a kernel, the bytes of a number, and head dims up to `width`: tiles on data-centre devices from sm_90 up, which have
    227 KiB of shared memory to a program, and on all others, which have 99 KiB at least. `rich` calls have a
    bias, dropout, softcap or masks that are no interval of keys, and so more to hold."""

    kernel: str
    bytes: int
    width: int
    rich: bool
    large: Shape
    small: Shape


ROWS = (
    Row("forward", 2, 64, False, (128, 64, 4, 3), (128, 64, 8, 3)),
    Row("forward", 2, 64, True, (128, 64, 8, 3), (64, 32, 4, 2)),
    Row("forward", 2, 128, False, (128, 64, 8, 3), (64, 32, 4, 2)),
    Row("forward", 2, 128, True, (64, 32, 4, 2), (64, 32, 8, 1)),
    Row("forward", 2, 256, False, (64, 32, 8, 1), (64, 32, 8, 1)),
    Row("forward", 2, 256, True, (32, 32, 8, 1), (32, 32, 8, 1)),
    Row("decode", 2, 64, False, (16, 64, 4, 3), (16, 64, 4, 3)),
    Row("decode", 2, 64, True, (16, 64, 4, 2), (16, 64, 4, 2)),
    Row("decode", 2, 128, False, (16, 64, 4, 3), (16, 64, 4, 2)),
    Row("decode", 2, 128, True, (16, 32, 4, 2), (16, 32, 4, 2)),
    Row("decode", 2, 256, False, (16, 32, 4, 2), (16, 32, 4, 2)),
    Row("decode", 2, 256, True, (16, 32, 8, 1), (16, 32, 8, 1)),
    Row("decode", 4, 64, False, (16, 32, 4, 2), (16, 32, 4, 2)),
    Row("decode", 4, 64, True, (16, 32, 8, 1), (16, 32, 8, 1)),
    Row("decode", 4, 256, False, (16, 16, 8, 1), (16, 16, 8, 1)),
    Row("decode", 4, 256, True, (16, 16, 8, 1), (16, 16, 8, 1)),
    Row("queries", 2, 64, False, (128, 64, 8, 2), (128, 64, 8, 2)),
    Row("queries", 2, 64, True, (128, 64, 8, 2), (64, 32, 4, 2)),
    Row("queries", 2, 128, False, (128, 64, 8, 2), (64, 64, 8, 2)),
    Row("queries", 2, 128, True, (64, 64, 8, 2), (64, 64, 8, 2)),
    Row("queries", 2, 256, False, (64, 64, 8, 2), (64, 32, 8, 1)),
    Row("queries", 2, 256, True, (32, 32, 8, 1), (32, 32, 8, 1)),
    Row("keys", 2, 64, False, (64, 128, 8, 2), (32, 64, 4, 2)),
    Row("keys", 2, 64, True, (64, 128, 8, 2), (32, 32, 4, 2)),
    Row("keys", 2, 128, False, (32, 128, 8, 1), (64, 64, 8, 1)),
    Row("keys", 2, 128, True, (32, 32, 4, 2), (32, 32, 4, 2)),
    Row("keys", 2, 256, False, (32, 32, 8, 1), (32, 32, 8, 1)),
    Row("keys", 2, 256, True, (16, 32, 8, 1), (16, 32, 8, 1)),
    Row("bias", 2, 64, True, (64, 64, 8, 2), (32, 32, 4, 1)),
    Row("bias", 2, 128, True, (32, 32, 8, 1), (16, 16, 8, 1)),
    Row("bias", 2, 256, True, (16, 16, 8, 1), (16, 16, 8, 1)),
    Row("diagonals", 2, 64, True, (64, 64, 8, 2), (32, 32, 4, 2)),
    Row("diagonals", 2, 128, True, (32, 32, 8, 1), (32, 32, 8, 1)),
    Row("diagonals", 2, 256, True, (16, 16, 8, 1), (16, 16, 8, 1)),
    Row("forward", 4, 64, False, (32, 32, 8, 1), (32, 32, 8, 1)),
    Row("forward", 4, 64, True, (32, 32, 8, 1), (32, 32, 8, 1)),
    Row("forward", 4, 256, False, (16, 16, 8, 1), (16, 32, 8, 1)),
    Row("forward", 4, 256, True, (16, 16, 8, 1), (16, 16, 8, 1)),
    Row("queries", 4, 64, False, (32, 32, 8, 1), (32, 32, 8, 1)),
    Row("queries", 4, 64, True, (32, 32, 8, 1), (32, 32, 8, 1)),
    Row("queries", 4, 256, False, (16, 16, 8, 1), (16, 16, 8, 1)),
    Row("queries", 4, 256, True, (16, 16, 8, 1), (16, 16, 8, 1)),
    Row("keys", 4, 64, False, (32, 32, 8, 1), (32, 32, 8, 1)),
    Row("keys", 4, 64, True, (32, 32, 8, 1), (32, 32, 8, 1)),
    Row("keys", 4, 256, False, (16, 16, 8, 1), (16, 16, 8, 1)),
    Row("keys", 4, 256, True, (16, 16, 8, 1), (16, 16, 8, 1)),
    Row("bias", 4, 64, True, (32, 32, 8, 1), (16, 32, 8, 1)),
    Row("bias", 4, 256, True, (16, 16, 8, 1), (16, 16, 8, 1)),
    Row("diagonals", 4, 64, True, (32, 32, 8, 1), (32, 32, 8, 1)),
    Row("diagonals", 4, 256, True, (16, 16, 8, 1), (16, 16, 8, 1)),
)


@dataclass(frozen=True)
class Tiles:
    """`queries` x `keys` scores at a time; `launch` is what Triton is told beside the arguments."""

    queries: int
    keys: int
    launch: dict[str, Any] = field(default_factory=dict)


FP_FUSION = {"enable_fp_fusion": True}
"""Products and sums may become one rounding; said, because Triton's own choice changes with its version."""

INTERPRETED = Tiles(32, 32)
"""Large enough to be bearable, small enough that calls of a hundred tokens have several tiles each way."""


def tiles_for(kernel: str, query: Tensor, value: Tensor, rich: bool, tile_queries: int | None, tile_keys: int | None) -> Tiles:
    """`kernel` is forward, decode, queries, keys, bias or diagonals, whose tiles are square."""
    chosen = INTERPRETED
    if query.is_cuda:
        chosen = of_row(row_for(kernel, query, value, rich), _is_large(torch.cuda.get_device_capability(query.device)))
    queries, keys = tile_queries or chosen.queries, tile_keys or chosen.keys
    return Tiles(queries, queries if kernel == "diagonals" else keys, chosen.launch)


def row_for(kernel: str, query: Tensor, value: Tensor, rich: bool) -> Row:
    width, size = max(query.shape[3], value.shape[3]), query.element_size()
    rich = rich or kernel in ("bias", "diagonals")
    return next(row for row in ROWS if (row.kernel, row.bytes, row.rich) == (kernel, size, rich) and width <= row.width)


def of_row(row: Row, large: bool) -> Tiles:
    queries, keys, warps, stages = row.large if large else row.small
    return Tiles(queries, keys, {"num_warps": warps, "num_stages": stages, **FP_FUSION})


def _is_large(capability: tuple[int, int]) -> bool:
    return capability[0] in (9, 10)
