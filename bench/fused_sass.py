"""The machine code of tfkit-fused for sm_90 and sm_100, without a GPU: instructions of one step of each loop. The file also has
what became of every program of the table of tiles.

    python bench/fused_sass.py --json bench/results/fused_sass.json
    python bench/fused_sass.py --tutorial 06-fused-attention.py --json bench/results/fused_sass.json

The second also compiles the forward kernel of Triton's tutorial, the yardstick, from a copy of
https://github.com/triton-lang/triton/blob/003da478d84f5bb0f51b3988cf0ea0bbe60282b7/python/tutorials/06-fused-attention.py
that you trust: it is imported. Figures of other versions of Triton stay in the file.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
import triton
from rich.console import Console
from rich.table import Table
from triton.tools.tensor_descriptor import TensorDescriptor

sys.path[:0] = [str(Path(__file__).parents[1] / "plugins" / "tfkit-fused" / "tests")]
import aot  # noqa: E402
from launches import CAPABILITIES, UNMEASURED, WHOLE, cell, cells, launched, named  # noqa: E402
from tfkit_fused.tiles import Tiles, triton_version  # noqa: E402

YARDSTICKS = (64, 128)
"""Head dims that the tutorial's kernel is compared for, without a mask, with the tiles YARDSTICK."""
YARDSTICK = Tiles(128, 64, 8, 3)


def figures(cost: aot.Cost) -> dict[str, Any]:
    loop = cost.step
    return {
        "instructions": loop.instructions, **loop.kinds, "registers": cost.registers, "spilled": cost.spilled,
        "advisories": len(cost.advisories),
    }  # fmt: skip


def of_backend(known: dict[str, aot.Cost]) -> tuple[dict[str, dict[str, Any]], dict[str, str], dict[str, aot.Cost]]:
    """The cells, each with the names of its programs; the names of the programs of the table of tiles; and every program."""
    found: dict[str, aot.Cost] = {}

    def compiled(launch: aot.Launch, capability: int) -> str:
        name = aot.program_of(launch, capability)
        found[name] = known.get(name) or aot.compiled(launch, capability)
        return name

    rows: dict[str, dict[str, Any]] = {}
    for sm in CAPABILITIES:
        for each in cells(sm):
            row = rows.setdefault(each.name, {})
            row |= {f"sm_{sm}": compiled(each.launch, sm), f"tiles_{sm}": str(each.tiles)}
    choices = {}
    for choice in UNMEASURED:
        sm, table_row, described, tiles = choice
        choices[named(choice)] = compiled(launched(table_row, sm, tiles=tiles, described=described), sm)
    return rows, choices, found


def of_tutorial(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    triton.runtime.driver.set_active(aot.Absent(90))
    spec = importlib.util.spec_from_file_location("tutorial", path)
    module = importlib.util.module_from_spec(spec)
    with patch.object(torch.cuda, "get_device_capability", lambda *_: (9, 0)):
        spec.loader.exec_module(module)
    kernel = module._attn_fwd_tma.fn
    queries, keys = YARDSTICK.queries, YARDSTICK.keys
    for width in YARDSTICKS:
        rows = torch.zeros(2 * 8 * 2048, width, dtype=torch.float16)
        descriptors = [TensorDescriptor.from_tensor(rows, [size, width]) for size in (queries, keys, keys, queries)]
        named = {"HEAD_DIM": width, "BLOCK_M": queries, "BLOCK_N": keys, "FP8_OUTPUT": False, "STAGE": 1}
        arguments = (0.125, torch.zeros(2, 8, 2048), 2, 8, *descriptors, 2048)
        cost = aot.compiled(aot.Launch(kernel, arguments, {**named, **YARDSTICK.launch}), 90)
        yield f"forward, dense, D {width}", figures(cost) | {"tiles": str(YARDSTICK)}


def of_fused_beside_tutorial(width: int) -> int:
    """Instructions of `fused` in one step, with the tutorial's tiles."""
    return aot.compiled(cell("forward", width, "dense", WHOLE, YARDSTICK).launch, 90).step.instructions


def written(record: dict[str, Any]) -> str:
    """JSON with a line for each cell and each program."""
    text = json.dumps(record, indent=1, sort_keys=True, allow_nan=False)
    return re.sub(r"\n {5,}|\n {4}(?=[]}])", " ", text) + "\n"


def main(words: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tutorial", type=Path)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--again", action="store_true", help="compile programs that the file has, too")
    options = parser.parse_args(words)
    record = json.loads(options.json.read_text()) if options.json and options.json.exists() else {"versions": {}}
    found = record["versions"].setdefault(triton_version(), {"tutorial": {}})
    known = aot.recorded_costs(options.json) if options.json and not options.again else {}
    found["triton"] = triton.__version__
    found["cells"], found["choices"], programs = of_backend(known)
    found["programs"] = {name: cost.written() for name, cost in programs.items()}
    if options.tutorial:
        found["tutorial"] = dict(of_tutorial(options.tutorial))
    for width in YARDSTICKS if found["tutorial"] else ():
        found["tutorial"][f"forward, dense, D {width}"]["instructions_of_fused"] = of_fused_beside_tutorial(width)
    if options.json:
        options.json.write_text(written(record))
    for name, row in found["tutorial"].items():
        ratio = row["instructions_of_fused"] / row["instructions"]
        print(
            f"{name}, tiles {row['tiles']}: {row['instructions_of_fused']} instructions, the tutorial's kernel "
            f"{row['instructions']}: {ratio:.2f}"
        )
    columns = ("instructions", "wgmma", "mma", "wait", "exp2", "cp.async", "tma", "registers")
    for sm in CAPABILITIES:
        title = f"one step of each loop, per warp, sm_{sm}, Triton {triton.__version__}"
        table = Table("cell", "tiles", *columns, title=title)
        for name, row in found["cells"].items():
            if f"sm_{sm}" not in row:
                continue
            kinds = figures(programs[row[f"sm_{sm}"]])
            table.add_row(name, row[f"tiles_{sm}"], *(str(kinds.get(column, "")) for column in columns))
        Console(width=160).print(table)
    return found


if __name__ == "__main__":
    main()
