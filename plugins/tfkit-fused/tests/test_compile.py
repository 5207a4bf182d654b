"""Choices of tiles that the table has, compiled ahead of time for GPUs that need not be here: they fit, and do not spill.

The tiles taken unmeasured are compiled for every pair of architecture, kernel, bytes of a number, head width and richness.
`TFKIT_TILES=all pytest -m "" plugins/tfkit-fused/tests/test_compile.py` compiles every choice: run it after a change of the
table or of a kernel.
"""

from __future__ import annotations

import os
from dataclasses import replace
from itertools import combinations
from typing import Any

import pytest
import tfkit_fused
import torch

pytest.importorskip("triton", reason="not run: Triton, of which kernels are made, is not installed")

import aot
from tfkit_fused import launch
from tfkit_fused.tiles import ROWS, Row, Tiles, of_row

pytestmark = [
    pytest.mark.skipif(tfkit_fused.INTERPRETED, reason="interpreted kernels are not compiled"),
    pytest.mark.filterwarnings("ignore:TRITON_DEFAULT_FP_FUSION"),
]
SHARED = {90: 232_448, 80: 101_376}
"""Bytes of shared memory that one program may have: Hopper, and the least of the devices from sm_80 on."""
SPILLED = {False: 48, True: 192}
"""Bytes of registers that may be spilled, in plain and in rich calls, by Triton 3.6 and by 3.9, which spill in other places."""
WIDE = 320
"""The same for gradients of biases in 16 bits with heads wider than 128, which no tile avoids."""
NAMES = {"decode": "decode_chunks", "keys": "keys_and_values", "bias": "dense", "together": "keys_and_values"}
"""The kernels that the table calls otherwise."""
K = 2000


def call(row: Row) -> launch.Call:
    """A call with all that the row allows: masks by interval, in rich ones key visibility, dropout, softcap and a bias.
    Segments and dense masks are left out where the gradient of a bias is what is compiled: with them it spills up to 2 KiB."""
    dtype = torch.bfloat16 if row.bytes == 2 else torch.float32
    Q = 3 if row.kernel == "decode" else 64
    key, value = (torch.zeros(2, K, 4, row.width, dtype=dtype).transpose(1, 2) for _ in range(2))
    query = torch.zeros(2, Q, 8, row.width, dtype=dtype).transpose(1, 2)
    rows = torch.ones(2, dtype=torch.int64)
    made: dict[str, Any] = dict.fromkeys(launch.Call.__dataclass_fields__)
    made |= {"query": query, "key": key, "value": value, "key_lengths": rows, "query_lengths": rows, "left": 7, "right": 0}
    made |= {"bias_kind": "", "bias_low": 0, "offset": 3, "scale": 0.1, "dropout": 0.0, "tuned": "off"}
    made["atomic"] = row.kernel == "together"
    if row.rich:
        made |= {"key_visible": torch.ones(2, K, dtype=torch.bool), "softcap": 3.0, "seed": rows[:1], "dropout": 0.1}
        made |= {"bias": torch.zeros(8, 33), "bias_kind": "distance", "bias_low": -16}
        if row.kernel == "bias":
            made |= {"bias": torch.zeros(1, 8, Q, K), "bias_kind": "dense"}
        if row.kernel not in ("bias", "diagonals"):
            segments, of_keys = (torch.zeros(2, length, dtype=torch.int64) for length in (Q, K))
            visible = torch.ones(2, 8, Q, K, dtype=torch.bool)
            made |= {"query_segments": segments, "key_segments": of_keys, "visible": visible}
    return launch.Call(**made)


def launched(
    row: Row, capability: int, monkeypatch: pytest.MonkeyPatch, name: str = "", tiles: Tiles | None = None, **changes: Any
) -> aot.Launch:
    """What the backend would launch of this row's kernel on such a device, with what it takes unmeasured or other tiles."""
    heard: list[aot.Launch] = []
    kernels = ("forward_kernel", "decode_chunks", "join_chunks", "row_sums", "queries", "keys_and_values", "dense", "diagonals")
    with monkeypatch.context() as patch:
        for kernel in kernels:
            patch.setattr(launch, kernel, aot.Recorder(getattr(launch, kernel), heard))
        patch.setattr(launch, "tiles_for", lambda *arguments: (tiles or of_row(row, capability == 90)[0],))
        given = replace(call(row), **changes)
        output, lse = launch.forward(given)
        if row.kernel not in ("forward", "decode"):
            launch.backward(given, output, lse, torch.zeros_like(output), None, given.bias is not None)
    wanted = name or NAMES.get(row.kernel, row.kernel)
    return next(each for each in heard if each.kernel.__name__ == wanted)


Choice = tuple[int, Row, Tiles]
CHOICES: list[Choice] = [(sm, row, tiles) for sm in (90, 80) for row in ROWS for tiles in of_row(row, sm == 90)]


def pairs(choice: Choice) -> set[tuple[Any, ...]]:
    sm, row, _ = choice
    return set(combinations(enumerate((sm, row.kernel, row.bytes, row.width, row.rich)), 2))


def covering(choices: list[Choice]) -> list[Choice]:
    """Few of the choices that have every pair that any of them has: always the one with most pairs that are missing."""
    missing = set().union(*map(pairs, choices))
    found = []
    while missing:
        found.append(max(choices, key=lambda choice: len(pairs(choice) & missing)))
        missing -= pairs(found[-1])
    return found


UNMEASURED = [choice for choice in CHOICES if choice[2] == of_row(choice[1], choice[0] == 90)[0]]
COMPILED = CHOICES if os.environ.get("TFKIT_TILES") == "all" else covering(UNMEASURED)


def named(capability: int, row: Row, tiles: Tiles) -> str:
    name = f"{row.kernel}-{row.bytes * 8}-{row.width}-{'rich' if row.rich else 'plain'}-{capability}"
    return f"{name}-{tiles}"


@pytest.mark.exhaustive
@pytest.mark.parametrize(("capability", "row", "tiles"), [pytest.param(*each, id=named(*each)) for each in COMPILED])
def test_it_compiles_fits_and_does_not_spill(capability, row, tiles, monkeypatch):
    cost = aot.compiled(launched(row, capability, monkeypatch, tiles=tiles), capability)
    assert cost.shared <= SHARED[capability], cost
    wide = row.kernel in ("bias", "diagonals") and (row.bytes, row.width) == (2, 256)
    assert cost.spilled <= (WIDE if wide else SPILLED[row.rich]), cost


FEATURES = {
    "linear": {"bias": torch.zeros(8), "bias_kind": "linear"},
    "distance": {"bias": torch.zeros(8, 33), "bias_kind": "distance"},
    "dense": {"bias": torch.zeros(1, 8, 64, K), "bias_kind": "dense"}, "softcap": {"softcap": 3.0},
    "dropout": {"seed": torch.zeros(1, dtype=torch.int64), "dropout": 0.1},
    "offsets": {"offsets": torch.zeros(2, dtype=torch.int64)},
    "visible": {"visible": torch.ones(2, 8, 64, K, dtype=torch.bool)}, "key_visible": {"key_visible": torch.ones(2, K) > 0},
    "segments": {"query_segments": torch.zeros(2, 64).long(), "key_segments": torch.zeros(2, K).long()},
    "no left": {"left": None}, "no right": {"right": None}, "no key lengths": {"key_lengths": None},
    "no query lengths": {"query_lengths": None},
}  # fmt: skip


@pytest.mark.exhaustive
@pytest.mark.parametrize("kernel", ["forward", "queries", "keys", "together"])
def test_no_feature_is_lost_by_the_compiler(kernel, monkeypatch):
    """Each gives another program, forward and backward: constants that Triton forgets would be features that are ignored."""
    row = next(row for row in ROWS if (row.kernel, row.bytes, row.width, row.rich) == (kernel, 2, 64, False))
    programs = {"plain": aot.intermediate(launched(row, 90, monkeypatch), 90)}
    for name, changes in FEATURES.items():
        programs[name] = aot.intermediate(launched(row, 90, monkeypatch, **changes), 90)
    assert len(set(programs.values())) == len(programs), sorted(programs, key=programs.get)


@pytest.mark.exhaustive
def test_only_the_backward_in_one_kernel_adds_with_atomics(monkeypatch):
    for kernel in ("queries", "keys", "together"):
        rows = [row for row in ROWS if (row.kernel, row.bytes, row.width) == (kernel, 2, 64)]
        for row in rows:
            found = aot.intermediate(launched(row, 90, monkeypatch), 90)
            assert found.count("tt.atomic_rmw") == (kernel == "together"), row


@pytest.mark.exhaustive
@pytest.mark.parametrize("name", ["row_sums", "join_chunks"])
def test_the_small_kernels_compile(name, monkeypatch):
    row = next(row for row in ROWS if row.kernel == ("queries" if name == "row_sums" else "decode"))
    cost = aot.compiled(launched(row, 90, monkeypatch, name), 90)
    assert (cost.spilled, cost.shared < SHARED[80]) == (0, True)


@pytest.mark.exhaustive
def test_lengths_and_offsets_are_no_part_of_a_compiled_kernel(monkeypatch):
    """Q, K and the offset are not specialised on, so that no batch recompiles."""
    row = ROWS[0]
    kernel = launched(row, 90, monkeypatch).kernel
    plain = {parameter.name for parameter in kernel.params if parameter.do_not_specialize}
    assert {"Q", "K", "offset"} <= plain


@pytest.mark.exhaustive
def test_blackwell_compiles_too(monkeypatch):
    row = ROWS[0]
    assert aot.compiled(launched(row, 90, monkeypatch), 100).shared <= SHARED[90]
