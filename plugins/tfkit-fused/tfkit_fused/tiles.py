"""How large the tiles of each kernel are, and how many warps and stages it runs with.

The rows are tiles that fit shared memory and registers, by the word of Triton 3.6 to 3.9 (tests/test_compile.py holds them to
it), and others that fit and that measuring may find faster. On sm_90 the tiles with the least predicted time go first
(BY_TIME). The backward in one kernel, `together`, has no rows where its tiles of keys would be smaller than 64 in 16 bits (wide
heads, rich calls): each tile of keys adds all of dq once more in memory, which eats what two products save.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch import Tensor

Shape = tuple[int, int, int, int]
"""Queries, keys, warps, stages."""


FEATURES = ("plain", "position", "dropout", "rich")
"""What calls have to hold beside scores: nothing but masks that are intervals of keys; a bias by distance; dropout and key
visibility; anything, that is segments, dense masks, dense biases and softcap too."""
SHORT, RAGGED = 64, 512
"""Lengths that one tile holds, and those of queries and keys up to which batches with lengths of their own take the same tiles:
sentences of a text are much shorter than the longest of them."""
HOPPER = 9
"""The first number of the capability of sm_90."""


@dataclass(frozen=True)
class Row:
    """For a kernel, the bytes of a number, head dims up to `width` and one of FEATURES: tiles on data-centre devices from
    sm_90 up, which have 227 KiB of shared memory to a program, and on all others, which have 99 KiB at least. Nothing runs
    where there is None. What measuring may choose instead is in `more`, for some devices beside what they take anyway, and for
    the former also in `more_large`. A `short` row is for calls with at most SHORT queries, or keys where tiles are of keys; or
    with at most RAGGED of both in a batch with lengths."""

    kernel: str
    bytes: int
    width: int
    features: str
    large: Shape | None
    small: Shape | None
    more: tuple[Shape, ...] = ()
    more_large: tuple[Shape, ...] = ()
    short: bool = False


ROWS = (
    Row("forward", 2, 64, "plain", (128, 128, 8, 3), (128, 64, 8, 3), ((64, 64, 4, 3),), ((128, 64, 8, 3), (64, 128, 4, 3))),
    Row("forward", 2, 64, "rich", (128, 32, 8, 2), (64, 32, 4, 2), ((128, 32, 8, 2), (64, 32, 4, 2), (64, 64, 8, 2))),
    Row("forward", 2, 128, "plain", (128, 64, 8, 3), (64, 32, 4, 2), ((128, 32, 8, 2),), ((128, 64, 8, 2), (64, 64, 4, 3))),
    Row("forward", 2, 128, "rich", (128, 32, 8, 2), (64, 32, 8, 1), ((64, 32, 8, 2), (32, 64, 8, 2))),
    Row("forward", 2, 256, "plain", (64, 32, 8, 1), (64, 32, 8, 1), ((32, 64, 8, 1), (32, 32, 4, 1))),
    Row("forward", 2, 256, "rich", (32, 32, 8, 1), (32, 32, 8, 1), ((32, 32, 8, 2), (32, 32, 4, 1))),
    Row("forward", 2, 64, "position", (128, 128, 8, 2), (128, 64, 8, 2), ((64, 64, 4, 2), (64, 32, 4, 2)), ((128, 64, 8, 2),)),
    Row("forward", 2, 64, "dropout", (128, 64, 8, 2), (64, 64, 4, 2), ((64, 32, 4, 2),), ((128, 32, 8, 2),)),
    Row("forward", 2, 128, "position", (128, 64, 8, 2), (64, 32, 4, 2), ((128, 32, 8, 2),), ((64, 64, 4, 2),)),
    Row("forward", 2, 128, "dropout", (128, 64, 8, 2), (64, 32, 8, 2), ((128, 32, 8, 2),)),
    Row("queries", 2, 64, "position", (128, 64, 8, 2), (64, 32, 4, 2), ((64, 64, 4, 2),), ((128, 32, 8, 2),)),
    Row("queries", 2, 64, "dropout", (128, 64, 8, 2), (64, 32, 4, 2), ((128, 32, 8, 2),)),
    Row("queries", 2, 128, "position", (128, 64, 8, 2), (64, 32, 8, 2), ((32, 64, 8, 2),), ((128, 32, 8, 2),)),
    Row("queries", 2, 128, "dropout", (128, 64, 8, 2), (64, 32, 8, 2), ((32, 64, 8, 2),), ((128, 32, 8, 2),)),
    Row("keys", 2, 64, "position", (32, 128, 8, 2), (32, 32, 4, 2), ((32, 32, 8, 2),), ((32, 64, 4, 2),)),
    Row("keys", 2, 64, "dropout", (32, 128, 8, 2), (32, 32, 4, 2), ((32, 32, 8, 2), (16, 64, 8, 2)), ((32, 64, 4, 2),)),
    Row("keys", 2, 128, "position", (32, 128, 8, 2), (32, 32, 8, 2), ((16, 64, 8, 2),), ((16, 128, 8, 2),)),
    Row("keys", 2, 128, "dropout", (16, 128, 8, 2), (32, 32, 8, 2), ((16, 32, 4, 2),), ((32, 128, 8, 1),)),
    Row("forward", 2, 64, "plain", (64, 64, 4, 3), (64, 64, 4, 2), ((64, 32, 4, 2),), (), True),
    Row("forward", 2, 64, "position", (64, 64, 4, 2), (64, 64, 4, 2), ((64, 32, 4, 2),), (), True),
    Row("forward", 2, 64, "dropout", (64, 64, 4, 2), (64, 32, 4, 2), ((64, 32, 4, 2), (64, 64, 8, 2)), (), True),
    Row("forward", 2, 128, "plain", (64, 64, 4, 2), (64, 32, 4, 2), ((64, 32, 4, 2), (64, 32, 8, 2)), (), True),
    Row("forward", 2, 128, "position", (64, 64, 4, 2), (64, 32, 4, 2), ((64, 32, 4, 2), (64, 32, 8, 2)), (), True),
    Row("forward", 2, 128, "dropout", (64, 32, 4, 2), (64, 32, 8, 2), ((64, 32, 8, 1),), (), True),
    Row("queries", 2, 64, "plain", (64, 64, 4, 2), (64, 64, 4, 2), ((64, 32, 4, 2),), (), True),
    Row("queries", 2, 64, "position", (64, 64, 4, 2), (64, 32, 4, 2), ((64, 32, 4, 2), (64, 32, 8, 2)), (), True),
    Row("queries", 2, 64, "dropout", (64, 64, 4, 2), (64, 32, 4, 2), ((64, 32, 4, 2), (64, 32, 8, 2)), (), True),
    Row("queries", 2, 128, "plain", (64, 64, 4, 2), (64, 32, 4, 2), ((64, 32, 4, 2), (64, 32, 8, 2)), (), True),
    Row("queries", 2, 128, "position", (64, 32, 4, 2), (64, 32, 8, 2), ((64, 32, 8, 1),), (), True),
    Row("queries", 2, 128, "dropout", (64, 32, 4, 2), (64, 32, 8, 2), ((64, 32, 8, 1),), (), True),
    Row("keys", 2, 64, "plain", (64, 64, 4, 2), (32, 64, 4, 1), ((32, 64, 4, 2), (32, 64, 8, 2)), (), True),
    Row("keys", 2, 64, "position", (32, 64, 4, 2), (32, 32, 4, 2), ((32, 64, 8, 2),), (), True),
    Row("keys", 2, 64, "dropout", (32, 64, 4, 2), (32, 32, 4, 2), ((32, 64, 8, 2),), (), True),
    Row("decode", 2, 64, "plain", (16, 64, 4, 3), (16, 64, 4, 3), ((16, 32, 4, 3),)),
    Row("decode", 2, 64, "rich", (16, 64, 4, 2), (16, 64, 4, 2), ((16, 32, 4, 2),)),
    Row("decode", 2, 128, "plain", (16, 64, 4, 3), (16, 64, 4, 2), ((16, 32, 4, 3),)),
    Row("decode", 2, 128, "rich", (16, 32, 4, 2), (16, 32, 4, 2), ((16, 64, 8, 2),)),
    Row("decode", 2, 256, "plain", (16, 32, 4, 2), (16, 32, 4, 2), ((16, 64, 8, 2), (16, 32, 8, 2))),
    Row("decode", 2, 256, "rich", (16, 32, 8, 1), (16, 32, 8, 1), ((16, 64, 8, 1), (16, 32, 4, 1))),
    Row("decode", 4, 64, "plain", (16, 32, 4, 2), (16, 32, 4, 2), ((16, 64, 8, 1), (16, 32, 4, 3))),
    Row("decode", 4, 64, "rich", (16, 32, 8, 1), (16, 32, 8, 1), ((16, 64, 8, 1), (16, 32, 4, 1))),
    Row("decode", 4, 256, "plain", (16, 16, 8, 1), (16, 16, 8, 1), ((16, 32, 8, 1), (16, 16, 8, 2))),
    Row("decode", 4, 256, "rich", (16, 16, 8, 1), (16, 16, 8, 1), ((16, 32, 8, 1), (16, 16, 4, 1))),
    Row("queries", 2, 64, "plain", (128, 64, 8, 2), (128, 64, 8, 2), ((64, 64, 4, 2),), ((128, 32, 8, 2),)),
    Row("queries", 2, 64, "rich", (128, 32, 8, 2), (64, 32, 4, 2), ((128, 32, 8, 2), (64, 32, 4, 2)), ((32, 128, 8, 2),)),
    Row("queries", 2, 128, "plain", (128, 64, 8, 2), (64, 64, 8, 2), ((64, 32, 4, 2),), ((64, 64, 8, 2), (64, 64, 4, 2))),
    Row("queries", 2, 128, "rich", (128, 32, 8, 2), (64, 64, 8, 2), ((64, 32, 8, 2), (32, 64, 8, 2))),
    Row("queries", 2, 256, "plain", (32, 64, 8, 1), (64, 32, 8, 1), ((32, 64, 8, 1), (32, 32, 4, 1)), ((32, 64, 8, 2),)),
    Row("queries", 2, 256, "rich", (32, 32, 8, 1), (32, 32, 8, 1), ((32, 32, 4, 1), (16, 32, 8, 1))),
    Row("keys", 2, 64, "plain", (64, 128, 8, 2), (32, 128, 8, 1), ((32, 64, 4, 1),), ((32, 128, 8, 2),)),
    Row("keys", 2, 64, "rich", (16, 128, 8, 2), (32, 32, 4, 2), ((32, 32, 8, 2), (16, 32, 4, 2)), ((32, 128, 8, 1),)),
    Row("keys", 2, 128, "plain", (32, 128, 8, 2), (64, 64, 8, 1), ((32, 64, 8, 1), (16, 64, 8, 2)), ((32, 128, 8, 1),)),
    Row("keys", 2, 128, "rich", (32, 32, 8, 2), (32, 32, 8, 2), ((32, 32, 8, 1), (16, 32, 8, 2))),
    Row("keys", 2, 256, "plain", (32, 32, 8, 1), (32, 32, 8, 1), ((16, 32, 8, 1), (32, 16, 8, 1))),
    Row("keys", 2, 256, "rich", (16, 32, 8, 1), (16, 32, 8, 1), ((32, 16, 8, 1), (16, 16, 8, 1))),
    Row("together", 2, 64, "plain", (32, 128, 8, 2), (16, 128, 8, 2), ((16, 64, 4, 1),), ((32, 64, 4, 2),)),
    Row("together", 2, 64, "rich", (16, 128, 8, 2), None, (), ((32, 64, 8, 2), (16, 64, 4, 2))),
    Row("together", 2, 128, "plain", (16, 128, 8, 1), (64, 64, 8, 1), ((16, 64, 8, 1),)),
    Row("bias", 2, 64, "rich", (64, 64, 8, 2), (32, 32, 4, 1), ((32, 64, 8, 1), (64, 32, 8, 1))),
    Row("bias", 2, 128, "rich", (32, 32, 8, 1), (16, 32, 8, 1), ((32, 32, 8, 1), (32, 16, 8, 1), (16, 32, 4, 1))),
    Row("bias", 2, 256, "rich", (16, 16, 8, 1), (16, 16, 8, 1), ((16, 32, 8, 1),)),
    Row("diagonals", 2, 64, "rich", (64, 64, 8, 2), (32, 32, 4, 2), ((32, 32, 8, 1), (16, 16, 4, 1))),
    Row("diagonals", 2, 128, "rich", (32, 32, 8, 1), (32, 32, 8, 1), ((16, 16, 4, 1),)),
    Row("diagonals", 2, 256, "rich", (16, 16, 8, 1), (16, 16, 8, 1), ((16, 16, 4, 1),)),
    Row("forward", 4, 64, "plain", (32, 32, 8, 1), (32, 32, 8, 1), ((32, 32, 8, 2), (16, 32, 4, 1))),
    Row("forward", 4, 64, "rich", (32, 32, 8, 1), (32, 32, 8, 1), ((32, 32, 4, 1), (16, 32, 4, 1))),
    Row("forward", 4, 256, "plain", (16, 16, 8, 1), (16, 32, 8, 1), ((16, 16, 8, 1), (16, 16, 8, 2))),
    Row("forward", 4, 256, "rich", (16, 16, 8, 1), (16, 16, 8, 1), ((16, 32, 8, 1), (16, 16, 4, 1))),
    Row("queries", 4, 64, "plain", (32, 32, 8, 1), (32, 32, 8, 1), ((32, 64, 8, 1), (32, 32, 4, 1))),
    Row("queries", 4, 64, "rich", (32, 32, 8, 1), (32, 32, 8, 1), ((32, 32, 4, 1), (16, 32, 4, 1))),
    Row("queries", 4, 256, "plain", (16, 16, 8, 1), (16, 16, 8, 1), ((32, 16, 8, 1), (16, 16, 4, 1))),
    Row("queries", 4, 256, "rich", (16, 16, 8, 1), (16, 16, 8, 1), ((16, 32, 8, 1), (16, 16, 4, 1))),
    Row("keys", 4, 64, "plain", (32, 32, 8, 1), (32, 32, 8, 1), ((32, 64, 8, 1), (32, 32, 4, 1))),
    Row("keys", 4, 64, "rich", (32, 32, 8, 1), (32, 32, 8, 1), ((32, 32, 4, 1), (16, 32, 4, 1))),
    Row("keys", 4, 256, "plain", (16, 16, 8, 1), (16, 16, 8, 1), ((16, 16, 4, 1),), ((32, 16, 8, 1),)),
    Row("keys", 4, 256, "rich", (16, 16, 8, 1), (16, 16, 8, 1), ((16, 16, 4, 1),), ((16, 32, 8, 1),)),
    Row("together", 4, 64, "plain", (32, 32, 8, 1), (32, 32, 8, 1), ((32, 64, 8, 1), (32, 32, 4, 1))),
    Row("together", 4, 64, "rich", (32, 32, 8, 1), (32, 32, 8, 1), ((16, 32, 8, 1), (16, 32, 4, 1))),
    Row("bias", 4, 64, "rich", (32, 32, 8, 1), (16, 32, 8, 1), ((32, 32, 4, 1), (16, 32, 4, 1))),
    Row("bias", 4, 256, "rich", (16, 16, 8, 1), (16, 16, 8, 1), ((16, 32, 8, 1), (16, 16, 4, 1))),
    Row("diagonals", 4, 64, "rich", (32, 32, 8, 1), (32, 32, 8, 1), ((32, 32, 4, 1), (16, 16, 4, 1))),
    Row("diagonals", 4, 256, "rich", (16, 16, 8, 1), (16, 16, 8, 1), ((16, 16, 4, 1),)),
)


INSTEAD: dict[str, dict[tuple[str, int, int, str, bool, bool], Shape]] = {
    "3.6": {
        ("forward", 2, 64, "rich", False, True): (32, 64, 8, 2), ("forward", 2, 128, "rich", False, True): (32, 64, 8, 2),
        ("keys", 2, 64, "plain", True, True): (32, 64, 4, 2), ("keys", 2, 64, "dropout", True, True): (16, 64, 4, 2),
        ("keys", 2, 64, "dropout", False, True): (16, 128, 8, 2), ("keys", 2, 64, "rich", False, True): (32, 32, 8, 2),
        ("keys", 2, 64, "rich", False, False): (32, 32, 8, 2), ("keys", 2, 128, "plain", False, True): (16, 128, 8, 2),
        ("keys", 2, 128, "position", False, True): (16, 128, 8, 2), ("keys", 2, 128, "dropout", False, True): (32, 32, 8, 2),
        ("keys", 2, 128, "rich", False, False): (32, 32, 8, 1), ("keys", 2, 256, "rich", False, False): (16, 16, 8, 1),
        ("keys", 2, 256, "rich", False, True): (16, 16, 8, 1),
        ("together", 2, 64, "rich", False, True): (16, 128, 8, 1),
    },
    "3.7": {
        ("keys", 2, 64, "dropout", False, True): (16, 128, 8, 2), ("keys", 2, 64, "dropout", False, False): (32, 32, 8, 2),
        ("keys", 2, 64, "dropout", True, False): (32, 32, 8, 2), ("keys", 2, 128, "plain", False, True): (16, 128, 8, 2),
        ("keys", 2, 128, "position", False, True): (16, 128, 8, 2), ("keys", 2, 64, "dropout", True, True): (16, 64, 4, 2),
    },
    "3.8": {
        ("queries", 2, 128, "plain", True, True): (64, 32, 4, 2), ("keys", 2, 128, "position", False, True): (16, 128, 8, 2),
        ("keys", 2, 256, "rich", False, False): (16, 16, 8, 1),
    },
}  # fmt: skip
"""What one version of Triton takes unmeasured in place of a row's first choice, which it spills or whose products it lets wait
for each other: by kernel, bytes, width, features, whether the row is short, and whether the device is large."""


BLACKWELL: dict[str, dict[tuple[str, int, int, str, bool], Shape]] = {
    "": {
        ("forward", 2, 64, "position", False): (128, 64, 8, 2), ("keys", 2, 64, "plain", False): (32, 128, 8, 2),
        ("keys", 2, 64, "position", False): (32, 64, 4, 2), ("keys", 2, 128, "plain", False): (32, 64, 8, 2),
        ("keys", 2, 128, "position", False): (32, 64, 8, 2), ("keys", 2, 128, "dropout", False): (16, 64, 8, 2),
        ("keys", 2, 64, "plain", True): (32, 64, 4, 2), ("keys", 2, 256, "rich", False): (16, 16, 8, 1),
        ("queries", 2, 128, "plain", True): (64, 32, 4, 2),
    },
    "3.6": {
        ("keys", 2, 64, "plain", False): (16, 128, 8, 2), ("keys", 2, 64, "position", False): (16, 128, 8, 2),
        ("keys", 2, 64, "plain", True): (32, 64, 8, 2), ("keys", 2, 64, "position", True): (16, 64, 4, 2),
    },
}  # fmt: skip
"""What sm_100 takes unmeasured in place of a row's first choice, which it spills: products leave their sums in a memory of
their own, and these kernels read them back into registers. By version of Triton, those of "" for all; then by kernel, bytes,
width, features, whether the row is short."""


DESCRIBED: dict[str, dict[tuple[str, int, int, str, bool], Shape]] = {
    "": {
        ("forward", 2, 128, "plain", False): (128, 128, 8, 2), ("keys", 2, 64, "position", False): (64, 128, 8, 2),
        ("queries", 2, 128, "plain", True): (64, 64, 4, 2), ("queries", 2, 256, "plain", False): (64, 64, 8, 1),
    },
    "3.7": {("keys", 2, 128, "position", False): (16, 128, 8, 3), ("keys", 2, 128, "dropout", False): (16, 128, 8, 3)},
    "3.8": {("queries", 2, 128, "plain", True): (64, 32, 4, 2)},
}  # fmt: skip
"""What large devices take unmeasured where the hardware copies tiles (TMA), which leaves registers for larger ones. By version
of Triton, those of "" for all others; then by kernel, bytes, width, features, whether the row is short."""


BY_TIME: dict[str, dict[tuple[str, int, int, str, bool], Shape]] = {
    "": {
        ("forward", 2, 64, "plain", False): (128, 64, 8, 2), ("forward", 2, 128, "plain", False): (128, 128, 8, 2),
        ("forward", 2, 64, "position", False): (64, 64, 4, 2), ("forward", 2, 128, "position", False): (128, 128, 8, 2),
        ("forward", 2, 64, "dropout", False): (64, 64, 4, 2), ("forward", 2, 128, "dropout", False): (64, 64, 4, 2),
        ("queries", 2, 64, "plain", False): (64, 64, 4, 2), ("queries", 2, 128, "plain", False): (64, 32, 4, 2),
        ("queries", 2, 64, "position", False): (64, 64, 4, 2), ("queries", 2, 128, "position", False): (64, 64, 4, 2),
        ("queries", 2, 64, "dropout", False): (64, 64, 4, 2), ("queries", 2, 128, "dropout", False): (64, 32, 4, 2),
        ("keys", 2, 64, "plain", False): (64, 64, 4, 2), ("keys", 2, 128, "plain", False): (64, 64, 8, 2),
        ("keys", 2, 64, "position", False): (64, 64, 4, 2),
        ("forward", 2, 64, "plain", True): (64, 32, 4, 2), ("forward", 2, 128, "plain", True): (64, 32, 4, 2),
        ("forward", 2, 64, "position", True): (64, 32, 4, 2), ("forward", 2, 128, "position", True): (64, 32, 4, 2),
        ("forward", 2, 64, "dropout", True): (64, 32, 4, 2), ("forward", 2, 128, "dropout", True): (64, 32, 4, 2),
        ("queries", 2, 64, "plain", True): (64, 32, 4, 2), ("queries", 2, 128, "plain", True): (64, 32, 4, 2),
        ("queries", 2, 64, "position", True): (64, 32, 4, 2), ("queries", 2, 128, "position", True): (64, 32, 4, 2),
        ("queries", 2, 64, "dropout", True): (64, 32, 4, 2), ("queries", 2, 128, "dropout", True): (64, 32, 4, 2),
        ("keys", 2, 64, "plain", True): (32, 64, 4, 2), ("keys", 2, 64, "position", True): (32, 64, 4, 2),
    },
    "3.6": {("keys", 2, 64, "position", False): (32, 64, 4, 2)},
    "3.8": {("forward", 2, 128, "position", False): (128, 64, 8, 2)},
}  # fmt: skip
"""What sm_90 takes unmeasured where the hardware copies tiles: of those that do not spill, the ones with the least time that
their machine code predicts for long calls, or for sentences of a text (bench/fused_time.py). Most are two to five programs
on a multiprocessor: one multiplies while others compute exponentials, start or end. By version of Triton, those of "" for
all others; then by kernel, bytes, width, features, whether the row is short."""


SPECIALISED: tuple[Shape, ...] = ((128, 128, 12, 2), (128, 64, 12, 3))
"""What measuring may also choose on sm_90, in 16 bits, for calls that `kernels/specialised.py` serves."""
SPECIALISED_WIDTH, SPECIALISED_WARPS = 128, 12
"""Of its programs: the widest heads; warps, four that copy and two groups of four that multiply."""


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
        """Empty in the interpreter, which has no warps. Triton counts those of one group."""
        warps = 4 if self.is_specialised else self.warps
        return {"num_warps": warps, "num_stages": self.stages, **FP_FUSION} if self.warps else {}

    @property
    def is_specialised(self) -> bool:
        """Whether groups of warps do different work (`kernels/specialised.py`)."""
        return self.warps == SPECIALISED_WARPS

    @property
    def constants(self) -> dict[str, Any]:
        """Of a kernel whose tiles are of queries and keys."""
        return {"TILE_Q": self.queries, "TILE_K": self.keys, **self.launch}

    @property
    def shape(self) -> Shape:
        return (self.queries, self.keys, self.warps or 0, self.stages or 0)

    def __str__(self) -> str:
        return f"{self.queries}x{self.keys}, {self.warps} warps, {self.stages} stages"


INTERPRETED = Tiles(32, 32)
"""Large enough to be bearable, small enough that calls of a hundred tokens have several tiles each way."""


def tiles_for(
    kernel: str, query: Tensor, key: Tensor, value: Tensor, features: str, ragged: bool, described: bool,
    tile_queries: int | None, tile_keys: int | None,
) -> tuple[Tiles, ...]:  # fmt: skip
    """What may be chosen, first what is taken unmeasured; one where a size is written, none where the table has no row.

    `kernel` is forward, decode, queries, keys, together, bias or diagonals, whose tiles are square.
    """
    choices: tuple[Tiles, ...] = (INTERPRETED,)
    if query.is_cuda:
        row = row_for(kernel, query, key, value, features, ragged)
        choices = of_row(row, generation_of(torch.cuda.get_device_capability(query.device)[0]), described)
    if not (choices and (tile_queries or tile_keys)):
        return choices
    queries, keys = tile_queries or choices[0].queries, tile_keys or choices[0].keys
    return (Tiles(queries, queries if kernel == "diagonals" else keys, choices[0].warps, choices[0].stages),)


def row_for(kernel: str, query: Tensor, key: Tensor, value: Tensor, features: str, ragged: bool) -> Row | None:
    """The narrowest row that holds the heads: for these features, or for all if there is none; a short one where it fits.
    `ragged`: the rows of the batch have lengths of their own."""
    is_short = (key if kernel in ("keys", "together") else query).shape[2] <= SHORT
    is_short = is_short or (ragged and max(query.shape[2], key.shape[2]) <= RAGGED)
    return _row(kernel, query.element_size(), max(query.shape[3], value.shape[3]), features, is_short)


@cache
def _row(kernel: str, size: int, width: int, features: str, is_short: bool) -> Row | None:
    for wanted in (features, "rich"):
        fits = [
            row for row in ROWS
            if (row.kernel, row.bytes, row.features) == (kernel, size, wanted) and width <= row.width and row.short <= is_short
        ]  # fmt: skip
        if fits:
            return min(fits, key=lambda row: (row.width, not row.short))
    return None


@cache
def of_row(row: Row | None, generation: int, described: bool = False) -> tuple[Tiles, ...]:
    """All that may be chosen on a device, first what is taken unmeasured. `generation`: see `generation_of`. `described`: by
    calls whose tiles of keys and values the hardware copies."""
    if row is None:
        return ()
    large = generation >= HOPPER
    shape, more = (row.large, (*row.more_large, *row.more)) if large else (row.small, row.more)
    key = (row.kernel, row.bytes, row.width, row.features, row.short)
    version, instead = triton_version(), None
    if generation > HOPPER:
        instead = BLACKWELL.get(version, {}).get(key) or BLACKWELL[""].get(key)
    instead = instead or INSTEAD.get(version, {}).get((*key, large))
    if shape is not None and instead is not None:
        shape, more = instead, tuple(other for other in more if other != instead)
    if large and described and shape is not None:
        for of_versions in (DESCRIBED, BY_TIME)[: 1 + (generation == HOPPER)]:
            of_version = {**of_versions[""], **of_versions.get(version, {})}
            shape, more = of_version.get(key, shape), (shape, *more)
    return () if shape is None else tuple(Tiles(*fields) for fields in dict.fromkeys((shape, *more)))


def specialised_tiles(query: Tensor, value: Tensor) -> tuple[Tiles, ...]:
    """What may also be chosen where specialised warps can run; none for short calls and wide heads."""
    is_wide = max(query.shape[3], value.shape[3]) > SPECIALISED_WIDTH
    return () if is_wide or query.shape[2] <= SHORT else tuple(Tiles(*fields) for fields in SPECIALISED)


@cache
def triton_version() -> str:
    """Major and minor number, as in INSTEAD."""
    import triton

    return ".".join(triton.__version__.split(".")[:2])


def generation_of(major: int) -> int:
    """10 or 9 for devices of sm_100 and sm_90, which are large; 8 for all others, by the first number of the capability."""
    return major if major in (HOPPER, 10) else 8
