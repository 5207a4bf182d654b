"""How long the kernels of tfkit-fused take on an H100, from their machine code, beside what was measured.

    python bench/fused_time.py --json bench/results/fused_time.json
    python bench/fused_time.py --compile      (with the Triton whose kernels were measured, 3.6.0)
    python bench/fused_time.py --tiles        (compiles tiles to choose from, and prints their times)

A program (one tile of queries, or of keys) with `steps` of its loop needs, in cycles of its multiprocessor,

    T = flops / PRODUCTS                      of the tensor cores, at the rate that a product of matrices reached
    I = warps / 4 (instructions + integers)   of four schedulers, one instruction a cycle each; integers take two cycles
    Z = START + WAIT waits                    of nothing: it waits for memory at its start and end, and for products

n programs fit on a multiprocessor (`residents`). They queue where they want the same; all else of one overlaps the others. That
is a closed network of queues, by mean value analysis (Reiser and Lavenberg 1980, https://doi.org/10.1145/322186.322195), with D
the T and I of a program:

    R_k(n) = D_k (1 + Q_k(n-1))        X(n) = n / (Z + sum_k R_k(n))        Q_k(n) = X(n) R_k(n)

and a kernel takes, with the imbalance of its last wave (`imbalance`),

    LAUNCH + max(programs imbalance / (132 X CLOCK), bytes copied / L2, bytes of its tensors / MEMORY)

Fitted are START and WAIT alone; all else is known of the device, was measured beside the cells, or is assumed and says so. The
form was chosen with all cells in view. A measured time counts where it is the device's: not where the host took as long to
launch the call.
"""

from __future__ import annotations

import argparse
import heapq
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from itertools import product
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT / "plugins" / name) for name in ("tfkit-fused/tests", "tfkit-fused", "tfkit-conformance")]
from tfkit_conformance.bench.cells import CELLS, SCALES, Cell, drawn  # noqa: E402

H100 = ROOT / "bench" / "results" / "h100"
PROCESSORS, CLOCK = 132, 1.8e9
"""Streaming multiprocessors; their cycles a second, by the profile (1.80 to 1.83)."""
PRODUCTS = 743.97e12 / PROCESSORS / CLOCK
"""Floating-point operations of a multiprocessor in a cycle, by the product of two matrices that was measured beside the cells:
0.76 of what the tensor cores could do."""
MEMORY = 3.0037e12
"""Bytes a second, by the copy that was measured beside the cells."""
L2 = 5.5e12
"""Bytes a second, a cautious limit: by the profile, 8 to 10 would be all. No measured kernel comes near it."""
LAUNCH = 3e-6
"""Seconds between two kernels of a stream, assumed."""
REGISTERS, SHARED, RESERVED, WARPS = 65_536, 233_472, 1_024, 64
"""Of a multiprocessor: registers, bytes of shared memory, those that each program loses of it, warps."""
AROUND = 1.5
"""Issue slots of an instruction outside of the loop or in a mask: every second one works on integers, as is assumed."""
START_STEPS = 3
"""Steps that the start of a program takes the time of, where only the balance of a wave depends on it."""
T5_REACH, T5_TILE, T5_LAUNCHES = 128, 64, 20
"""The largest distance of a T5 table; the tile of its diagonals; small kernels that gather its gradient, about."""
CHUNK = 512
"""Keys of one program of decoding."""
HOST = 0.9
"""A measured time is the host's where the host took this share of it to launch the call."""
PRODUCTS_OF = {"forward": 2, "queries": 3, "keys_and_values": 4, "diagonals": 2, "decode_chunks": 2}
"""Products of matrices in one step."""


@dataclass(frozen=True)
class Code:
    """The tiles of a kernel, and what ptxas made of it. Instructions are those of a warp: outside of the loop, in a step whose
    tile needs no mask, in a step with every branch taken; of a step also those on integers, and the waits for products."""

    queries: int
    keys: int
    warps: int
    stages: int
    registers: int
    shared: int
    outside: int
    step: int
    most: int
    integers: int
    waits: int

    @property
    def residents(self) -> int:
        """Programs that fit on a multiprocessor: each quarter of it has a quarter of the registers, 256 at a time."""
        warps = REGISTERS // 4 // (-(-self.registers * 32 // 256) * 256) * 4
        return min(min(warps, WARPS) // self.warps, SHARED // (self.shared + RESERVED))


@dataclass(frozen=True)
class Work:
    """What a kernel of a call does: programs, steps, masked steps; operations of a step; `imbalance`; bytes that it copies to
    multiprocessors, and bytes of its tensors."""

    code: Code
    programs: int
    steps: int
    masked: float
    flops: float
    imbalance: float
    copied: float
    moved: float


@dataclass(frozen=True)
class Constants:
    """Cycles that a program waits at its start and end, and for products, each time."""

    start: float
    wait: float


def throughput(residents: int, demands: Sequence[float], waits: float) -> float:
    """Programs that a multiprocessor finishes in a cycle: X above."""
    queues, rate = [0.0] * len(demands), 0.0
    for programs in range(1, residents + 1):
        times = [demand * (1.0 + queue) for demand, queue in zip(demands, queues, strict=True)]
        rate = programs / (waits + sum(times))
        queues = [rate * time for time in times]
    return rate


def seconds(work: Work, constants: Constants) -> float:
    """Of one kernel."""
    code, steps = work.code, work.steps / work.programs
    products = steps * work.flops / PRODUCTS
    slots = steps * (code.step + code.integers) + AROUND * (
        code.outside + work.masked / work.programs * (code.most - code.step)
    )
    waits = constants.start + constants.wait * code.waits * steps
    rate = throughput(code.residents, (products, code.warps / 4 * slots), waits)
    return LAUNCH + max(work.programs * work.imbalance / (PROCESSORS * rate * CLOCK), work.copied / L2, work.moved / MEMORY)


def walk(begin: int, end: int, whole_from: int, whole_to: int, size: int) -> tuple[int, int]:
    """(tiles of `size` with something of [begin, end), those of them that do not lie in [whole_from, whole_to))."""
    first, last = begin // size, -(-end // size)
    whole = min(last, whole_to // size) - max(first, -(-whole_from // size))
    return max(0, last - first), max(0, last - first) - max(0, whole)


def walks(cell: Cell, kernel: str, code: Code, Q: int, K: int, queries: int, keys: int) -> list[tuple[int, int]]:
    """(steps, masked steps) of the programs of one head of a batch row with so many queries and keys that are no padding, in
    the order in which they start. With T5's biases the steps near the diagonal, which look them up, take the place of masked
    ones."""
    of_keys, window, found = kernel == "keys_and_values", cell.window or 10**9, []
    own, step, length, real, others = (
        (code.keys, code.queries, K, keys, queries) if of_keys else (code.queries, code.keys, Q, queries, keys)
    )
    for low in range(0, length, own):
        high = min(low + own, real)
        if of_keys:
            begin, end = low if cell.causal else 0, min(others, high - 1 + window)
            whole_from, whole_to = low + own - 1 if cell.causal else 0, min(Q, low + window) if low + own <= real else 0
        else:
            begin, end = max(0, low - window + 1), min(others, high) if cell.causal else others
            whole_from, whole_to = max(0, high - window), min(others, low + 1) if cell.causal else others
        steps, masked = walk(begin, end, whole_from, whole_to, step) if high > low else (0, 0)
        if cell.bias == "distance":
            masked = walk(max(0, low - T5_REACH + 1), min(others, low + own + T5_REACH - 1), 0, 0, step)[0]
        found.append((steps, masked))
    return found if of_keys else found[::-1]


def imbalance(steps: Sequence[int], slots: int) -> float:
    """The time until the last slot is free, relative to the mean, where each slot takes the next program when it is free."""
    free = [0] * slots
    for each in steps:
        heapq.heapreplace(free, free[0] + each + START_STEPS)
    return max(free) * slots / sum(free)


@cache
def lengths(cell: Cell) -> tuple[int, int, list[tuple[int, int]]]:
    """Queries, keys, and of each batch row those that are no padding. Queries are padding where causality hides it, too."""
    batch = cell.batch(SCALES["cuda"])
    if cell.text is None:
        return cell.length, cell.length, [(cell.length, cell.length)] * batch
    pairs = drawn(cell.text, batch, 0)
    sources, targets = ([pair[side] for pair in pairs] for side in (0, 1))
    rows, columns = {"encoder": (sources, sources), "decoder": (targets, targets), "cross": (targets, sources)}[cell.side]
    Q = max(rows)
    return Q, max(columns), [(column if cell.causal else Q, column) for column in columns]


@cache
def work_of(cell: Cell, kernel: str, code: Code) -> Work:
    """Of one kernel of a cell, in 16 bits."""
    (H, G), D = cell.heads(SCALES["cuda"]), cell.head_dim
    Q, K, rows = lengths(cell)
    flops = 2.0 * code.queries * code.keys * D * PRODUCTS_OF[kernel]
    moved, share = 2 * D * len(rows) * (2 * H * Q + 2 * G * K), 1.0
    if kernel == "decode_chunks":
        found = [(CHUNK // code.keys, 0)] * (len(rows) * G * -(-K // CHUNK))
        moved = 2 * D * len(rows) * 2 * G * K
    elif kernel == "diagonals":
        bands, tiles = (2 * T5_REACH - 2) // T5_TILE + 3, -(-Q // T5_TILE)
        first = (1 - T5_REACH) // T5_TILE
        found = [(max(0, tiles - abs(band)), 0) for band in range(first, first + bands)] * (len(rows) * H)
    else:
        known = {each: walks(cell, kernel, code, Q, K, *each) for each in set(rows)}
        found = [program for each in rows for _ in range(G if kernel == "keys_and_values" else H) for program in known[each]]
        share = 0.5 if cell.bias == "distance" else 1.0  # T5's look-up is half of what all branches add, as is assumed
    steps = sum(each for each, _ in found)
    copied = steps * 2 * 2 * D * (code.queries if kernel == "keys_and_values" else code.keys)
    masked = share * sum(each for _, each in found)
    balance = imbalance([each for each, _ in found], PROCESSORS * code.residents)
    return Work(code, len(found), steps, masked, flops, balance, copied, moved)


def call_seconds(cell: Cell, kernels: Sequence[tuple[str, Code]], constants: Constants) -> float:
    """Of a call with its gradients, if it has them: its kernels one after the other, and those that only move memory."""
    H, _ = cell.heads(SCALES["cuda"])
    Q, _, rows = lengths(cell)
    found = sum(seconds(work_of(cell, kernel, code), constants) for kernel, code in kernels)
    if cell.training:  # the row sums of outputs and their gradients
        found += LAUNCH + len(rows) * H * Q * (4 * cell.head_dim + 8) / MEMORY
    if cell.decode:  # the chunks are joined
        found += LAUNCH + constants.start / CLOCK
    return found + (T5_LAUNCHES * LAUNCH if cell.training and cell.bias == "distance" else 0.0)


@dataclass(frozen=True)
class Measured:
    """A cell, or one of its kernels by the profiler; its kernels; what was measured, in microseconds, and by the host's time
    whether that is the device's time."""

    name: str
    cell: Cell
    kernels: tuple[tuple[str, Code], ...]
    microseconds: float
    counts: bool

    def predicted(self, constants: Constants) -> float:
        if self.name.startswith("profile"):
            return 1e6 * sum(seconds(work_of(self.cell, *each), constants) - LAUNCH for each in self.kernels)
        return 1e6 * call_seconds(self.cell, self.kernels, constants)


def measured() -> list[Measured]:
    """By name. A time within a CUDA graph, where there is one, has nothing of the host's."""
    known, found = json.loads((H100 / "kernels.json").read_text()), []
    times, graphs = (
        {each["cell"]: each for each in json.loads((H100 / name).read_text())[1:]}
        for name in ("attention.json", "attention_in_graphs.json")
    )
    codes = {name: Code(**code) for name, code in known["programs"].items()}
    cells = {cell.name: cell for cell in CELLS}
    for name, kernels in known["cells"].items():
        own = tuple((kernel, codes[program]) for kernel, program in kernels)
        time, host = times[name]["fused"], times[name]["fused_host_us"]
        in_graph = graphs.get(name, {}).get("fused")
        found.append(Measured(name, cells[name], own, 1e3 * (in_graph or time), bool(in_graph) or host < HOST * 1e3 * time))
    profile = known["profile"]
    for kernel, code in found[[each.name for each in found].index(profile["cell"])].kernels:
        name = f"profile of {profile['cell']}: {kernel}"
        found.append(Measured(name, cells[profile["cell"]], ((kernel, code),), profile["microseconds"][kernel], True))
    return sorted(found, key=lambda each: each.name)


def fitted(cells: Sequence[Measured]) -> Constants:
    """With the least squares of relative errors (Gauss-Newton; the prediction is nearly linear in both)."""
    found = np.array([5000.0, 100.0])
    for _ in range(5):
        errors = np.array([each.predicted(Constants(*found)) / each.microseconds - 1.0 for each in cells])
        columns = []
        for number, by in enumerate((100.0, 5.0)):
            moved = found.copy()
            moved[number] += by
            later = [each.predicted(Constants(*moved)) / each.microseconds - 1.0 for each in cells]
            columns.append((np.array(later) - errors) / by)
        found = found - np.linalg.lstsq(np.stack(columns, 1), errors, rcond=None)[0]
    return Constants(*(round(float(each), 1) for each in found))


def worst(cells: Sequence[Measured], constants: Constants) -> float:
    return round(max(abs(each.predicted(constants) / each.microseconds - 1.0) for each in cells), 3)


def evaluated() -> dict[str, Any]:
    """The constants, fitted to all cells and to each half of them; the worst errors; every cell."""
    cells = measured()
    counting = [each for each in cells if each.counts]
    constants = fitted(counting)
    halves = []
    for first in (0, 1):
        own, others = counting[first::2], counting[1 - first :: 2]
        half = fitted(own)
        halves.append({**asdict(half), "cells": len(own), "worst": worst(own, half), "worst_of_others": worst(others, half)})
    rows = [
        {"cell": each.name, "measured_us": round(each.microseconds), "predicted_us": round(each.predicted(constants)),
         "counts": each.counts} for each in cells
    ]  # fmt: skip
    return {
        "constants": asdict(constants), "cells_fitted": len(counting), "worst": worst(counting, constants), "halves": halves,
        "cells": rows, "tiles": tiles_by_time(constants),
    }  # fmt: skip


def code_of(cost: Any, tiles: Any) -> Code:
    """Of what `aot.compiled` says of a kernel with such `Tiles`."""
    step = cost.step
    return Code(
        *tiles.shape, cost.registers, cost.shared, cost.outside, step.instructions, step.most, step["integers"], step["wait"]
    )


def compiled_cells(known: dict[str, Any]) -> dict[str, Any]:
    """`kernels.json` again: what the installed Triton makes for sm_90 of the measured kernels, with the tiles that they had."""
    import aot
    import launches
    import torch
    from tfkit_fused import launch
    from tfkit_fused.tiles import Tiles

    def tiles_of(cell: str) -> dict[str, Tiles]:
        codes = {kernel: Code(**known["programs"][program]) for kernel, program in known["cells"][cell]}
        return {kernel: Tiles(code.queries, code.keys, code.warps, code.stages) for kernel, code in codes.items()}

    programs: dict[str, Any] = {}
    found: dict[str, list[tuple[str, str]]] = {}
    for cell in (each for each in CELLS if each.name in known["cells"]):
        (H, G), (Q, K, _), D = cell.heads(SCALES["cuda"]), lengths(cell), cell.head_dim
        Q, rows = 1 if cell.decode else Q, torch.ones(2, dtype=torch.int64)
        query, key, value = (
            torch.zeros(2, length, heads, D, dtype=torch.bfloat16).transpose(1, 2) for length, heads in ((Q, H), (K, G), (K, G))
        )
        given: dict[str, Any] = dict.fromkeys(launch.Call.__dataclass_fields__)
        given |= {"query": query, "key": key, "value": value, "bias_kind": "", "bias_low": 0, "atomic": False, "tuned": "off"}
        given |= {"offset": 0 if cell.text else K - Q, "scale": D**-0.5, "dropout": cell.dropout}
        given |= {"right": 0 if cell.causal else None, "left": cell.window - 1 if cell.window else None}
        if cell.text:
            given |= {"key_lengths": rows, "query_lengths": rows if cell.causal else None}
        if cell.dropout:
            given["seed"] = rows[:1]
        if cell.bias:
            by_distance = cell.bias == "distance"
            given |= {"bias": torch.zeros(H, 2 * T5_REACH + 1) if by_distance else torch.zeros(H), "bias_kind": cell.bias}
            given["bias_low"] = -T5_REACH if by_distance else 0
        had, heard = tiles_of(cell.name), []
        taken = patch.object(launch, "tiles_for", lambda kernel, *_: (had.get(launches.NAMES.get(kernel, kernel)),))  # noqa: B023
        with aot.without_a_device(90), taken, launches.recorded(heard):
            output, lse = launch.forward(call := launch.Call(**given))
            if cell.training:
                launch.backward(call, output, lse, torch.zeros_like(output), None, cell.bias == "distance")
        for each in heard:
            kernel = each.kernel.__name__
            if kernel in PRODUCTS_OF:
                name = aot.program_of(each, 90)
                programs[name] = programs.get(name) or asdict(code_of(aot.compiled(each, 90), had[kernel]))
                found.setdefault(cell.name, []).append((kernel, name))
    return {**known, "programs": programs, "cells": found}


TILES = H100.parent / "fused_tiles.json"
SHAPES = {
    "forward": ((128, 128, 8, 2), (128, 64, 8, 2), (128, 32, 8, 2), (64, 64, 4, 2), (64, 32, 4, 2)),
    "queries": ((128, 64, 8, 2), (64, 64, 4, 2), (64, 32, 4, 2)),
    "keys": ((64, 128, 8, 2), (32, 128, 8, 2), (16, 128, 8, 2), (64, 64, 8, 2), (64, 64, 4, 2), (32, 64, 4, 2)),
}
"""Tiles of which the model chooses, on sm_90 in 16 bits where the hardware copies them: queries, keys, warps, stages."""
NEARLY = 1.02
"""Of tiles whose times are within this, those are taken that copy least: the rate of L2 is the least known."""


def compiled_tiles() -> dict[str, Any]:
    """What the installed Triton makes of SHAPES, by kernel, width and features; without those that spill or are wrong."""
    import aot
    import triton
    from launches import ROWS, copies, launched
    from tfkit_fused.tiles import Tiles

    found: dict[str, list[dict[str, Any]]] = {}
    rows = [row for row in ROWS if row.kernel in SHAPES and row.bytes == 2 and row.width <= 128 and not row.short]
    for row in (each for each in rows if each.features != "rich" and copies(each, 90)):
        for shape in SHAPES[row.kernel]:
            cost = aot.compiled(launched(row, 90, tiles=Tiles(*shape)), 90)
            if not (cost.spilled or cost.advisories or cost.wrong or cost.shared > SHARED - RESERVED):
                found.setdefault(f"{row.kernel}-{row.width}-{row.features}", []).append(asdict(code_of(cost, Tiles(*shape))))
    return {"triton": triton.__version__, "tiles": found}


def usual(width: int, features: str, short: bool) -> list[Cell]:
    """The calls that tiles are chosen for: long ones; or short ones, sentences of texts."""
    kinds = {("position", 64): ("t5",), ("position", 128): ("alibi",)}.get(
        (features, width), (f"dense-d{width}", f"causal-d{width}")
    )
    names = [f"{text}-{side}" for text in ("multi30k", "wmt") for side in ("encoder", "decoder")]
    names = names if short else [f"{kind}-{length}" for kind in kinds for length in (2048, 8192)]
    return [replace(cell, head_dim=width) for cell in CELLS if cell.name.removesuffix("/forward") in names]


def chosen(kernel: str, width: int, features: str, short: bool, constants: Constants) -> dict[Code, float]:
    """Tiles with the geometric mean of their times, in microseconds; first what is taken."""
    name = {"keys": "keys_and_values"}.get(kernel, kernel)
    codes = [Code(**each) for each in json.loads(TILES.read_text())["tiles"].get(f"{kernel}-{width}-{features}", ())]
    times, copied = {}, {}
    for code in codes:
        works = [work_of(cell, name, code) for cell in usual(width, features, short)]
        times[code] = 1e6 * float(np.exp(np.mean([np.log(seconds(work, constants)) for work in works])))
        copied[code] = sum(work.copied for work in works)
    near = [code for code in times if times[code] <= NEARLY * min(times.values())]
    first = min(near, key=lambda code: (copied[code], times[code]), default=None)
    return dict(sorted(times.items(), key=lambda each: (each[0] != first, each[1])))


def tiles_by_time(constants: Constants) -> list[dict[str, Any]]:
    """For `fused_time.json`: of every kind of call, first what is taken."""
    found = []
    for row, short in product(json.loads(TILES.read_text())["tiles"], (False, True)):
        kernel, width, features = row.split("-")
        times = chosen(kernel, int(width), features, short, constants)
        named = {f"{code.queries}x{code.keys}, {code.warps} warps": (code, round(time)) for code, time in times.items()}
        kind = {"kernel": kernel, "width": int(width), "features": features, "short": short}
        programs = {name: code.residents for name, (code, _) in named.items()}
        found.append({**kind, "predicted_us": {name: time for name, (_, time) in named.items()}, "programs": programs})
    return found


def written(record: dict[str, Any]) -> str:
    """JSON with a line for each cell and program."""
    return re.sub(r"\n {3,}|\n {2}(?=[]}])", " ", json.dumps(record, indent=1, allow_nan=False)) + "\n"


def main(words: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--compile", action="store_true")
    parser.add_argument("--tiles", action="store_true")
    options = parser.parse_args(words)
    if options.tiles:
        TILES.write_text(written(compiled_tiles()))
    if options.compile:
        import triton

        known = json.loads((H100 / "kernels.json").read_text())
        if triton.__version__ != known["triton"]:
            parser.error(f"--compile: Triton {known['triton']} made the measured kernels, {triton.__version__} is installed")
        (H100 / "kernels.json").write_text(written(compiled_cells(known)))
    record = evaluated()
    if options.json:
        options.json.write_text(written(record))
    for row in record["cells"]:
        error, host = row["predicted_us"] / row["measured_us"] - 1.0, "" if row["counts"] else " (the host's time)"
        print(f"{row['cell']}: {row['measured_us']} us measured{host}, {row['predicted_us']} us predicted, {error:+.0%}")
    print({name: record[name] for name in ("constants", "cells_fitted", "worst", "halves")})
    for row in record["tiles"]:
        print(f"{row['kernel']} {row['width']} {row['features']}{' short' * row['short']}: {row['predicted_us']} us")
    return record


if __name__ == "__main__":
    main()
