"""The prediction of kernel times: its parts against plain loops, and the record against the measurements."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))
import fused_time
from fused_time import Code, Constants, chosen, imbalance, throughput, walks
from tfkit_fused.tiles import BY_TIME, ROWS, Tiles

from tfkit_conformance.bench.cells import CELLS

RECORD = json.loads((fused_time.ROOT / "bench" / "results" / "fused_time.json").read_text())
TILE = Code(queries=4, keys=2, warps=8, stages=2, registers=216, shared=163_872, outside=0, step=0, most=0, integers=0, waits=0)


def test_the_record_follows_from_the_measurements(tmp_path, capsys):
    fused_time.main(["--json", str(tmp_path / "times.json")])
    assert "dense-d64-2048/forward: 842 us measured, " in capsys.readouterr().out
    found = json.loads((tmp_path / "times.json").read_text())
    assert [(row["cell"], row["measured_us"], row["counts"]) for row in found["cells"]] == [
        (row["cell"], row["measured_us"], row["counts"]) for row in RECORD["cells"]
    ]
    assert [row["predicted_us"] for row in found["cells"]] == pytest.approx(
        [row["predicted_us"] for row in RECORD["cells"]], rel=2e-3, abs=1.0
    )
    for row, recorded in zip(found["tiles"], RECORD["tiles"], strict=True):
        assert row.pop("predicted_us") == pytest.approx(recorded["predicted_us"], rel=2e-3, abs=1.0)
        assert row == {name: each for name, each in recorded.items() if name != "predicted_us"}
    assert found["constants"] == pytest.approx(RECORD["constants"], rel=1e-3)
    assert found["worst"] == pytest.approx(RECORD["worst"], abs=2e-3)
    for half, recorded in zip(found["halves"], RECORD["halves"], strict=True):
        assert half == pytest.approx(recorded, rel=1e-3, abs=2e-3)


def test_the_rates_are_those_that_were_measured_beside_the_cells():
    first = json.loads((fused_time.H100 / "attention.json").read_text())[0]
    rate = fused_time.PRODUCTS * fused_time.PROCESSORS * fused_time.CLOCK
    assert (1e12 * first["peak_tflops"], 1e9 * first["copy_GBps"]) == pytest.approx((rate, fused_time.MEMORY), rel=1e-4)


def test_what_is_outside_of_15_percent():
    """A time of the host can only be too long for the device."""
    errors = {row["cell"]: row["predicted_us"] / row["measured_us"] - 1.0 for row in RECORD["cells"]}
    counting = {row["cell"] for row in RECORD["cells"] if row["counts"]}
    outside = {name for name, error in errors.items() if abs(error) > 0.15 and (name in counting or error > 0.0)}
    assert outside == {"decode-131072/forward", "multi30k-decoder/training"}


@pytest.mark.parametrize(
    ("registers", "shared", "warps", "programs"),
    [
        (216, 163_872, 8, 1), (191, 131_088, 8, 1), (214, 82_112, 8, 1),  # by the profile of an H100
        (128, 0, 4, 4), (129, 0, 4, 3), (32, 0, 4, 16), (16, 0, 4, 16), (32, 57_400, 4, 3), (255, 0, 8, 1),
    ],
)  # fmt: skip
def test_programs_that_fit_on_a_multiprocessor(registers, shared, warps, programs):
    assert replace(TILE, registers=registers, shared=shared, warps=warps).residents == programs


@pytest.mark.parametrize("programs", [1, 2, 5])
@pytest.mark.parametrize(("demands", "waits"), [((3.0, 5.0), 0.0), ((4.0, 4.0), 0.0), ((700.0, 300.0), 6500.0)])
def test_throughput_is_that_of_the_product_form(programs, demands, waits):
    """Buzen's sums (https://doi.org/10.1145/362342.362345): X(n) = G(n-1) / G(n), with G the sum of products over all ways to
    spread n programs over the two queues and the waiting, which has Z^k / k! for k."""

    def total(count):
        sums = 0.0
        for first in range(count + 1):
            for second in range(count - first + 1):
                delay = 1.0
                for each in range(1, count - first - second + 1):
                    delay *= waits / each
                sums += demands[0] ** first * demands[1] ** second * delay
        return sums

    assert throughput(programs, demands, waits) == pytest.approx(total(programs - 1) / total(programs))


@pytest.mark.parametrize("kernel", ["forward", "keys_and_values"])
@pytest.mark.parametrize(
    ("changes", "queries", "keys"),
    [
        ({}, 12, 12), ({"causal": True}, 12, 12), ({"causal": True, "window": 6}, 12, 12), ({}, 12, 7),
        ({"causal": True}, 7, 7),
    ],
)  # fmt: skip
def test_steps_are_those_of_a_plain_loop_over_pairs(kernel, changes, queries, keys):
    """Of 12 queries and 12 keys; those from `queries` and `keys` on are padding. A tile that ends in padding may be masked
    where no pair of it needs that."""
    cell, length = replace(CELLS[0], **changes), 12
    found = walks(cell, kernel, TILE, length, length, queries, keys)

    def sees(query, key):
        distance = query - key
        return key < keys and (not cell.causal or distance >= 0) and (cell.window is None or distance < cell.window)

    def tile(row, column):
        return [sees(i, j) for i in range(row, row + 4) if i < queries for j in range(column, column + 2)]

    rows, columns = range(0, length, 4), range(0, length, 2)
    if kernel == "forward":
        tiles = [[tile(row, column) for column in columns] for row in reversed(rows)]
    else:
        tiles = [[tile(row, column) for row in rows] for column in columns]
    assert [steps for steps, _ in found] == [sum(any(each) for each in own) for own in tiles]
    masked = [sum(any(each) and not all(each) for each in own) for own in tiles]
    assert all(least <= most for least, (_, most) in zip(masked, found, strict=True))
    if queries == keys == length:
        assert [each for _, each in found] == masked


def test_the_last_wave():
    assert imbalance([1] * 6, 3) == 1.0
    assert imbalance([1] * 4, 3) == pytest.approx(2 / (4 / 3))


def test_the_tiles_that_sm_90_takes_have_the_least_predicted_time():
    wanted = {}
    for row in ROWS:
        times = chosen(row.kernel, row.width, row.features, row.short, Constants(**RECORD["constants"]))
        if row.bytes == 2 and times:
            first = next(iter(times))
            shape = (first.queries, first.keys, first.warps, first.stages)
            wanted[row.kernel, 2, row.width, row.features, row.short] = shape
    assert BY_TIME[""] == wanted


def test_the_machine_code_that_tiles_are_chosen_by_is_that_of_the_record():
    """Of long calls, by the release of Triton that compiled both: after a change of a kernel, both are to be made anew (`python
    bench/fused_time.py --tiles --json bench/results/fused_time.json`)."""
    versions = json.loads((fused_time.TILES.parent / "fused_sass.json").read_text())["versions"]
    candidates = json.loads(fused_time.TILES.read_text())
    (version,) = (each for each in versions.values() if each["triton"] == candidates["triton"])
    for (kernel, size, width, features, short), shape in BY_TIME[""].items():
        if not short:
            name = f"{kernel}-{size * 8}-{width}-{features}-tma-90-{Tiles(*shape)}"
            program = version["programs"][version["choices"][name]]
            codes = [Code(**each) for each in candidates["tiles"][f"{kernel}-{width}-{features}"]]
            (code,) = (each for each in codes if (each.queries, each.keys, each.warps, each.stages) == shape)
            (loop,) = program["loops"]
            assert (code.registers, code.shared, code.step) == (
                program["registers"],
                program["shared"],
                loop["instructions"],
            ), name
