"""What the backend launches for a call, recorded: of a row of the table of tiles, or of a named cell.

Cells are the calls whose machine code is held to a record (bench/results/fused_sass.json), with the tiles of an H100 and a
B200.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import aot
import torch
from tfkit_fused import launch
from tfkit_fused.repeated import Repeated
from tfkit_fused.tiles import ROWS, SPECIALISED, Row, Tiles, generation_of, of_row, row_for

CAPABILITIES = (90, 100)
"""Architectures whose machine code is recorded."""
Choice = tuple[int, Row, bool, Tiles]
"""Architecture, row, whether the hardware copies tiles, tiles."""


def copies(row: Row, capability: int) -> bool:
    """Whether the hardware copies tiles in the call of this row (`call`): keys and values, or queries that see intervals."""
    of_keys = row.kernel in ("forward", "queries") and capability >= 90
    of_queries = row.kernel in ("keys", "together") and row.features in ("plain", "position")
    return row.bytes == 2 and (of_keys or (of_queries and copies_queries(capability, row.width)))


def copies_queries(capability: int, width: int) -> bool:
    with patch.object(launch, "_is_hopper", lambda device: capability == 90):
        return launch._copies_queries(torch.device("cuda"), width)


CHOICES: list[Choice] = [
    (sm, row, described, tiles)
    for sm in (100, 90, 80)
    for row in ROWS
    for described in ((False, True) if copies(row, sm) else (False,))
    for tiles in of_row(row, generation_of(sm // 10), described)
]
UNMEASURED = [choice for choice in CHOICES if choice[3] == of_row(choice[1], generation_of(choice[0] // 10), choice[2])[0]]
"""Those that are taken where nothing has been measured."""


def named(choice: Choice) -> str:
    capability, row, described, tiles = choice
    name = f"{row.kernel}-{row.bytes * 8}-{row.width}-{row.features}-{'short-' * row.short}{'tma-' * described}{capability}"
    return f"{name}-{tiles}"


NAMES = {"decode": "decode_chunks", "keys": "keys_and_values", "bias": "dense", "together": "keys_and_values"}
"""The kernels that the table calls otherwise."""
K = 2000


def call(row: Row) -> launch.Call:
    """A call with all that the row allows: masks by interval; a bias by distance; or dropout and key visibility; or, in rich
    ones, all of these with softcap, segments and a dense mask. These two are left out where the gradient of a bias is what is
    compiled: with them it spills up to 2 KiB."""
    dtype = torch.bfloat16 if row.bytes == 2 else torch.float32
    Q, keys = 3 if row.kernel == "decode" else 64, 60 if row.short and row.kernel == "keys" else K
    key, value = (torch.zeros(2, keys, 4, row.width, dtype=dtype).transpose(1, 2) for _ in range(2))
    query = torch.zeros(2, Q, 8, row.width, dtype=dtype).transpose(1, 2)
    rows = torch.ones(2, dtype=torch.int64)
    made: dict[str, Any] = dict.fromkeys(launch.Call.__dataclass_fields__)
    made |= {"query": query, "key": key, "value": value, "key_lengths": rows, "query_lengths": rows, "left": 7, "right": 0}
    made |= {"bias_kind": "", "bias_low": 0, "offset": 3, "scale": 0.1, "dropout": 0.0, "tuned": "off"}
    made["atomic"] = row.kernel == "together"
    if row.features in ("position", "rich"):
        made |= {"bias": torch.zeros(8, 33), "bias_kind": "distance", "bias_low": -16}
    if row.features in ("dropout", "rich"):
        made |= {"key_visible": torch.ones(2, keys, dtype=torch.bool), "seed": rows[:1], "dropout": 0.1}
    if row.features == "rich":
        made["softcap"] = 3.0
        if row.kernel == "bias":
            made |= {"bias": torch.zeros(1, 8, Q, keys), "bias_kind": "dense"}
        if row.kernel not in ("bias", "diagonals"):
            segments, of_keys = (torch.zeros(2, length, dtype=torch.int64) for length in (Q, keys))
            visible = torch.ones(2, 8, Q, keys, dtype=torch.bool)
            made |= {"query_segments": segments, "key_segments": of_keys, "visible": visible}
    return launch.Call(**made)


def launched(
    row: Row, capability: int, name: str = "", tiles: Tiles | None = None, described: bool = True, **changes: Any
) -> aot.Launch:
    """What the backend would launch of this row's kernel on such a device, with what it takes unmeasured or other tiles;
    without `described` as for rows at odd addresses, which the hardware cannot copy."""
    described = described and capability >= 90
    tiles = tiles or of_row(row, generation_of(capability // 10), described)[0]
    masks = patch.object(launch, "_masks_all", lambda device: capability < 90)
    copied = patch.object(launch, "_has_tma", lambda device: described)
    of_queries = patch.object(launch, "_is_hopper", lambda device: described and capability == 90)
    with masks, copied, of_queries, patch.object(launch, "tiles_for", lambda *_: (tiles,)):
        heard = launches(replace(call(row), **changes), backward=row.kernel not in ("forward", "decode"))
    wanted = name or NAMES.get(row.kernel, row.kernel)
    return next(each for each in heard if each.kernel.__name__ == wanted)


def launches(given: launch.Call, backward: bool = True, begins: int | None = None) -> list[aot.Launch]:
    """All that a call and its gradients launch; with gradients of the output and of the log-sum-exp that both lie `begins`
    numbers behind a multiple of 16 bytes, else with one of the output alone."""
    heard: list[aot.Launch] = []
    with recorded(heard):
        output, lse = launch.forward(given)
        grad, grad_lse = torch.zeros_like(output), None
        if begins is not None:
            grad, grad_lse = (torch.zeros(each.numel() + begins).to(each)[begins:].view(each.shape) for each in (output, lse))
        if backward:
            launch.backward(given, output, lse, grad, grad_lse, given.bias is not None)
    return heard


@contextmanager
def recorded(heard: list[aot.Launch]) -> Iterator[None]:
    """Meanwhile what would be launched is added to `heard`."""
    kernels = {name: each for name, each in vars(launch).items() if isinstance(each, Repeated)}
    with ExitStack() as stack:
        for name, kernel in kernels.items():
            stack.enter_context(patch.object(launch, name, aot.Recorder(kernel, heard)))
        yield


@dataclass(frozen=True)
class Cell:
    """A kernel of a kind of call in bfloat16, and the tiles that it takes on the device."""

    name: str
    kernel: str
    launch: aot.Launch
    tiles: Tiles


WHOLE = {"key_lengths": None, "query_lengths": None, "left": None, "right": None}
PADDED = {**WHOLE, "key_lengths": torch.ones(2, dtype=torch.int64)}
SEED = {"seed": torch.zeros(1, dtype=torch.int64), "dropout": 0.1}
KINDS: dict[str, dict[str, Any]] = {
    "dense": WHOLE, "causal": {**WHOLE, "right": 0}, "padded": PADDED,
    "T5": {**PADDED, "bias": torch.zeros(8, 33), "bias_kind": "distance", "bias_low": -16},
    "ALiBi causal": {**WHOLE, "right": 0, "bias": torch.zeros(8), "bias_kind": "linear"},
    "dropout": {**PADDED, **SEED},
    "key visibility": {**WHOLE, "key_visible": torch.ones(2, K, dtype=torch.bool)},
}  # fmt: skip


def cells(capability: int) -> Iterator[Cell]:
    for kernel in ("forward", "queries", "keys"):
        for width in (64, 128):
            for kind, changes in KINDS.items():
                yield cell(kernel, width, kind, changes, None, capability)
    for width in (64, 128):
        one, few = ({**PADDED, "query": torch.zeros(2, 8, length, width, dtype=torch.bfloat16)} for length in (1, 41))
        yield cell("decode", width, "one query", one, None, capability)
        yield cell("forward", width, "41 tokens", few, None, capability)
    for width in (64, 128) if capability == 90 else ():
        yield cell("specialised", width, "padded", PADDED, Tiles(*SPECIALISED[0]), capability)


def cell(kernel: str, width: int, kind: str, changes: dict[str, Any], tiles: Tiles | None = None, capability: int = 90) -> Cell:
    wanted = ("forward" if kernel == "specialised" else kernel, 2, width, "plain", False)
    row = next(row for row in ROWS if (row.kernel, row.bytes, row.width, row.features, row.short) == wanted)
    query = torch.zeros(2, 8, 2048, width, dtype=torch.bfloat16)
    given = replace(call(row), **{"query": query, **changes})
    ragged = given.key_lengths is not None
    found = row_for(kernel, given.query, given.key, given.value, launch.features_of(given), ragged)
    described = copies_queries(capability, width) and launch._sees_intervals(given) if kernel == "keys" else True
    tiles = tiles or of_row(found, generation_of(capability // 10), described)[0]
    name = kernel if kernel == "specialised" else ""
    made = launched(row, capability, name, tiles, **{"query": query, **changes})
    return Cell(f"{kernel}, {kind}, D {width}", kernel, made, tiles)
