"""What the backend launches for a call, recorded: of a row of the table of tiles, or of a named cell.

Cells are the calls whose machine code is held to a record (bench/results/fused_sass.json), with the tiles of an H100.
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
from tfkit_fused.tiles import ROWS, Row, Tiles, of_row, row_for

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
    tiles = tiles or of_row(row, capability >= 90, described)[0]
    masks = patch.object(launch, "_masks_all", lambda device: capability < 90)
    copies = patch.object(launch, "_has_tma", lambda device: described)
    with masks, copies, patch.object(launch, "tiles_for", lambda *_: (tiles,)):
        heard = launches(replace(call(row), **changes), backward=row.kernel not in ("forward", "decode"))
    wanted = name or NAMES.get(row.kernel, row.kernel)
    return next(each for each in heard if each.kernel.__name__ == wanted)


def launches(given: launch.Call, backward: bool = True) -> list[aot.Launch]:
    """All that a call and its gradients launch."""
    heard: list[aot.Launch] = []
    with recorded(heard):
        output, lse = launch.forward(given)
        if backward:
            launch.backward(given, output, lse, torch.zeros_like(output), None, given.bias is not None)
    return heard


@contextmanager
def recorded(heard: list[aot.Launch]) -> Iterator[None]:
    """Meanwhile what would be launched is added to `heard`."""
    kernels = ("forward_kernel", "decode_chunks", "join_chunks", "row_sums", "queries", "keys_and_values", "dense", "diagonals")
    with ExitStack() as stack:
        for kernel in kernels:
            stack.enter_context(patch.object(launch, kernel, aot.Recorder(getattr(launch, kernel), heard)))
        yield


@dataclass(frozen=True)
class Cell:
    """A kernel of a kind of call in bfloat16, and the tiles that it takes on an H100."""

    name: str
    kernel: str
    launch: aot.Launch
    tiles: Tiles
    features: int


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


def cells(every: bool = True) -> Iterator[Cell]:
    """Every cell; or about half of them, which have each pair of kernel, width and kind of call."""
    for row, kernel in enumerate(("forward", "queries", "keys")):
        for column, width in enumerate((64, 128)):
            for number, (kind, changes) in enumerate(KINDS.items()):
                if every or (row + column + number) % 2 == 0:
                    yield cell(kernel, width, kind, changes)
    for width in (64, 128):
        yield cell("decode", width, "one query", {**PADDED, "query": torch.zeros(2, 8, 1, width, dtype=torch.bfloat16)})
        yield cell("forward", width, "41 tokens", {**PADDED, "query": torch.zeros(2, 8, 41, width, dtype=torch.bfloat16)})


def cell(kernel: str, width: int, kind: str, changes: dict[str, Any], tiles: Tiles | None = None) -> Cell:
    wanted = (kernel, 2, width, "plain", False)
    row = next(row for row in ROWS if (row.kernel, row.bytes, row.width, row.features, row.short) == wanted)
    query = torch.zeros(2, 8, 2048, width, dtype=torch.bfloat16)
    given = replace(call(row), **{"query": query, **changes})
    found = row_for(kernel, given.query, given.key, given.value, launch.features_of(given))
    tiles = tiles or of_row(found, True, described=True)[0]
    made = launched(row, 90, tiles=tiles, **{"query": query, **changes})
    return Cell(f"{kernel}, {kind}, D {width}", kernel, made, tiles, width)
