"""How large the tiles of each kernel are, and how many warps and stages it runs with.

The rows are the largest tiles that fit shared memory and registers by the word of Triton 3.6 to 3.9 (tests/test_compile.py
holds them to it), and others that fit and that measuring may find faster; none has been timed yet. The backward in one kernel,
`together`, has no rows where its tiles of keys would be smaller than 64 in 16 bits (wide heads, rich calls): each tile of keys
adds all of dq once more in memory, which eats what two products save.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

Shape = tuple[int, int, int, int]
"""Queries, keys, warps, stages."""


@dataclass(frozen=True)
class Row:
    """For a kernel, the bytes of a number, and head dims up to `width`: tiles on data-centre devices from sm_90 up, which have
    227 KiB of shared memory to a program, and on all others, which have 99 KiB at least. `rich` calls have a bias, dropout,
    softcap or masks that are no interval of keys, and so more to hold. Nothing runs where there is None. What measuring may
    choose instead is in `more`, for some devices beside what they take anyway, and for the former also in `more_large`."""

    kernel: str
    bytes: int
    width: int
    rich: bool
    large: Shape | None
    small: Shape | None
    more: tuple[Shape, ...] = ()
    more_large: tuple[Shape, ...] = ()


ROWS = (
    Row("forward", 2, 64, False, (128, 128, 8, 3), (128, 64, 8, 3), ((64, 64, 4, 3),), ((128, 64, 8, 3), (64, 128, 4, 3))),
    Row("forward", 2, 64, True, (128, 32, 8, 2), (64, 32, 4, 2), ((128, 32, 8, 2), (64, 32, 4, 2), (64, 64, 8, 2))),
    Row("forward", 2, 128, False, (128, 64, 8, 3), (64, 32, 4, 2), ((128, 32, 8, 2),), ((128, 64, 8, 2), (64, 64, 4, 3))),
    Row("forward", 2, 128, True, (128, 32, 8, 2), (64, 32, 8, 1), ((64, 32, 8, 2), (32, 64, 8, 2))),
    Row("forward", 2, 256, False, (64, 32, 8, 1), (64, 32, 8, 1), ((32, 64, 8, 1), (32, 32, 4, 1))),
    Row("forward", 2, 256, True, (32, 32, 8, 1), (32, 32, 8, 1), ((32, 32, 8, 2), (32, 32, 4, 1))),
    Row("decode", 2, 64, False, (16, 64, 4, 3), (16, 64, 4, 3), ((16, 32, 4, 3),)),
    Row("decode", 2, 64, True, (16, 64, 4, 2), (16, 64, 4, 2), ((16, 32, 4, 2),)),
    Row("decode", 2, 128, False, (16, 64, 4, 3), (16, 64, 4, 2), ((16, 32, 4, 3),)),
    Row("decode", 2, 128, True, (16, 32, 4, 2), (16, 32, 4, 2), ((16, 64, 8, 2),)),
    Row("decode", 2, 256, False, (16, 32, 4, 2), (16, 32, 4, 2), ((16, 64, 8, 2), (16, 32, 8, 2))),
    Row("decode", 2, 256, True, (16, 32, 8, 1), (16, 32, 8, 1), ((16, 64, 8, 1), (16, 32, 4, 1))),
    Row("decode", 4, 64, False, (16, 32, 4, 2), (16, 32, 4, 2), ((16, 64, 8, 1), (16, 32, 4, 3))),
    Row("decode", 4, 64, True, (16, 32, 8, 1), (16, 32, 8, 1), ((16, 64, 8, 1), (16, 32, 4, 1))),
    Row("decode", 4, 256, False, (16, 16, 8, 1), (16, 16, 8, 1), ((16, 32, 8, 1), (16, 16, 8, 2))),
    Row("decode", 4, 256, True, (16, 16, 8, 1), (16, 16, 8, 1), ((16, 32, 8, 1), (16, 16, 4, 1))),
    Row("queries", 2, 64, False, (128, 64, 8, 2), (128, 64, 8, 2), ((64, 64, 4, 2),), ((128, 32, 8, 2),)),
    Row("queries", 2, 64, True, (128, 32, 8, 2), (64, 32, 4, 2), ((128, 32, 8, 2), (64, 32, 4, 2)), ((32, 128, 8, 2),)),
    Row("queries", 2, 128, False, (128, 64, 8, 2), (64, 64, 8, 2), ((64, 32, 4, 2),), ((64, 64, 8, 2), (64, 64, 4, 2))),
    Row("queries", 2, 128, True, (128, 32, 8, 2), (64, 64, 8, 2), ((64, 32, 8, 2), (32, 64, 8, 2))),
    Row("queries", 2, 256, False, (64, 64, 8, 2), (64, 32, 8, 1), ((32, 64, 8, 1), (32, 32, 4, 1)), ((32, 64, 8, 2),)),
    Row("queries", 2, 256, True, (32, 32, 8, 1), (32, 32, 8, 1), ((32, 32, 4, 1), (16, 32, 8, 1))),
    Row("keys", 2, 64, False, (64, 128, 8, 2), (32, 128, 8, 1), ((32, 64, 4, 1),), ((32, 128, 8, 2),)),
    Row("keys", 2, 64, True, (32, 128, 8, 2), (32, 32, 4, 2), ((32, 32, 8, 2),), ((32, 64, 8, 2),)),
    Row("keys", 2, 128, False, (32, 128, 8, 1), (64, 64, 8, 1), ((32, 64, 8, 1), (16, 64, 8, 2))),
    Row("keys", 2, 128, True, (32, 32, 4, 2), (32, 32, 4, 2), ((32, 32, 8, 2), (16, 64, 8, 2))),
    Row("keys", 2, 256, False, (32, 32, 8, 1), (32, 32, 8, 1), ((16, 32, 8, 1), (32, 16, 8, 1))),
    Row("keys", 2, 256, True, (16, 32, 8, 1), (16, 32, 8, 1), ((32, 16, 8, 1), (16, 16, 8, 1))),
    Row("together", 2, 64, False, (32, 128, 8, 2), (16, 128, 8, 2), ((16, 64, 4, 1),), ((32, 64, 4, 2),)),
    Row("together", 2, 64, True, (16, 128, 8, 2), None, (), ((32, 64, 8, 2), (16, 64, 4, 2))),
    Row("together", 2, 128, False, (16, 128, 8, 1), (64, 64, 8, 1), ((16, 64, 8, 1),)),
    Row("bias", 2, 64, True, (64, 64, 8, 2), (32, 32, 4, 1), ((32, 64, 8, 1), (64, 32, 8, 1))),
    Row("bias", 2, 128, True, (32, 32, 8, 1), (16, 16, 8, 1), ((16, 32, 8, 1), (32, 16, 8, 1))),
    Row("bias", 2, 256, True, (16, 16, 8, 1), (16, 16, 8, 1), ((16, 32, 8, 1),)),
    Row("diagonals", 2, 64, True, (64, 64, 8, 2), (32, 32, 4, 2), ((32, 32, 8, 1), (16, 16, 4, 1))),
    Row("diagonals", 2, 128, True, (32, 32, 8, 1), (32, 32, 8, 1), ((16, 16, 4, 1),)),
    Row("diagonals", 2, 256, True, (16, 16, 8, 1), (16, 16, 8, 1), ((16, 16, 4, 1),)),
    Row("forward", 4, 64, False, (32, 32, 8, 1), (32, 32, 8, 1), ((32, 32, 8, 2), (16, 32, 4, 1))),
    Row("forward", 4, 64, True, (32, 32, 8, 1), (32, 32, 8, 1), ((32, 32, 4, 1), (16, 32, 4, 1))),
    Row("forward", 4, 256, False, (16, 16, 8, 1), (16, 32, 8, 1), ((16, 16, 8, 1), (16, 16, 8, 2))),
    Row("forward", 4, 256, True, (16, 16, 8, 1), (16, 16, 8, 1), ((16, 32, 8, 1), (16, 16, 4, 1))),
    Row("queries", 4, 64, False, (32, 32, 8, 1), (32, 32, 8, 1), ((32, 64, 8, 1), (32, 32, 4, 1))),
    Row("queries", 4, 64, True, (32, 32, 8, 1), (32, 32, 8, 1), ((32, 32, 4, 1), (16, 32, 4, 1))),
    Row("queries", 4, 256, False, (16, 16, 8, 1), (16, 16, 8, 1), ((32, 16, 8, 1), (16, 16, 4, 1))),
    Row("queries", 4, 256, True, (16, 16, 8, 1), (16, 16, 8, 1), ((16, 32, 8, 1), (16, 16, 4, 1))),
    Row("keys", 4, 64, False, (32, 32, 8, 1), (32, 32, 8, 1), ((32, 64, 8, 1), (32, 32, 4, 1))),
    Row("keys", 4, 64, True, (32, 32, 8, 1), (32, 32, 8, 1), ((32, 32, 4, 1), (16, 32, 4, 1))),
    Row("keys", 4, 256, False, (16, 16, 8, 1), (16, 16, 8, 1), ((16, 16, 4, 1),), ((32, 16, 8, 1),)),
    Row("keys", 4, 256, True, (16, 16, 8, 1), (16, 16, 8, 1), ((16, 16, 4, 1),), ((16, 32, 8, 1),)),
    Row("together", 4, 64, False, (32, 32, 8, 1), (32, 32, 8, 1), ((32, 64, 8, 1), (32, 32, 4, 1))),
    Row("together", 4, 64, True, (32, 32, 8, 1), (32, 32, 8, 1), ((16, 32, 8, 1), (16, 32, 4, 1))),
    Row("bias", 4, 64, True, (32, 32, 8, 1), (16, 32, 8, 1), ((32, 32, 4, 1), (16, 32, 4, 1))),
    Row("bias", 4, 256, True, (16, 16, 8, 1), (16, 16, 8, 1), ((16, 32, 8, 1), (16, 16, 4, 1))),
    Row("diagonals", 4, 64, True, (32, 32, 8, 1), (32, 32, 8, 1), ((32, 32, 4, 1), (16, 16, 4, 1))),
    Row("diagonals", 4, 256, True, (16, 16, 8, 1), (16, 16, 8, 1), ((16, 16, 4, 1),)),
)


SPILT = {"3.8": {("queries", 2, 256, False): (64, 64, 8, 2)}}
"""What one version of Triton spills, and the others do not: there the other choices of the row are left."""


FP_FUSION = {"enable_fp_fusion": True}
"""Products and sums may become one rounding; said, because Triton's own choice changes with its version."""


@dataclass(frozen=True)
class Tiles:
    """`queries` x `keys` scores at a time, by `warps` with loads `stages` ahead."""

    queries: int
    keys: int
    warps: int | None = None
    stages: int | None = None

    @property
    def launch(self) -> dict[str, Any]:
        """Empty in the interpreter, which has no warps."""
        return {"num_warps": self.warps, "num_stages": self.stages, **FP_FUSION} if self.warps else {}

    @property
    def shape(self) -> Shape:
        return (self.queries, self.keys, self.warps or 0, self.stages or 0)

    def __str__(self) -> str:
        return f"{self.queries}x{self.keys}, {self.warps} warps, {self.stages} stages"


INTERPRETED = Tiles(32, 32)
"""Large enough to be bearable, small enough that calls of a hundred tokens have several tiles each way."""


def tiles_for(
    kernel: str, query: Tensor, value: Tensor, rich: bool, tile_queries: int | None, tile_keys: int | None
) -> tuple[Tiles, ...]:
    """What may be chosen, first what is taken unmeasured; one where a size is written, none where the table has no row.

    `kernel` is forward, decode, queries, keys, together, bias or diagonals, whose tiles are square.
    """
    found: tuple[Tiles, ...] = (INTERPRETED,)
    if query.is_cuda:
        found = of_row(row_for(kernel, query, value, rich), _is_large(torch.cuda.get_device_capability(query.device)))
    if not (found and (tile_queries or tile_keys)):
        return found
    queries, keys = tile_queries or found[0].queries, tile_keys or found[0].keys
    return (Tiles(queries, queries if kernel == "diagonals" else keys, found[0].warps, found[0].stages),)


def row_for(kernel: str, query: Tensor, value: Tensor, rich: bool) -> Row | None:
    width, size = max(query.shape[3], value.shape[3]), query.element_size()
    rich = rich or kernel in ("bias", "diagonals")
    fits = (row for row in ROWS if (row.kernel, row.bytes, row.rich) == (kernel, size, rich) and width <= row.width)
    return next(fits, None)


def of_row(row: Row | None, large: bool) -> tuple[Tiles, ...]:
    """All that may be chosen on a large device or on another, first what is taken unmeasured."""
    if row is None:
        return ()
    shape, more = (row.large, (*row.more_large, *row.more)) if large else (row.small, row.more)
    spilt = _spilt().get((row.kernel, row.bytes, row.width, row.rich))
    return () if shape is None else tuple(Tiles(*each) for each in dict.fromkeys((shape, *more)) if each != spilt)


@cache
def _spilt() -> dict[tuple[str, int, int, bool], Shape]:
    import triton

    return SPILT.get(".".join(triton.__version__.split(".")[:2]), {})


def _is_large(capability: tuple[int, int]) -> bool:
    return capability[0] in (9, 10)
