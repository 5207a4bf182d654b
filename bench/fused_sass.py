"""The machine code of tfkit-fused for sm_90, without a GPU: instructions of one step of each loop, and estimated TFLOP/s.

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
from launches import WHOLE, cell, cells  # noqa: E402
from machine_code import estimated_tflops, loops_of  # noqa: E402
from tfkit_fused.tiles import Tiles  # noqa: E402

YARDSTICKS = (64, 128)
"""Head dims that the tutorial's kernel is compared for, without a mask, with the tiles YARDSTICK."""
YARDSTICK = Tiles(128, 64, 8, 3)


def figures(cost: aot.Cost) -> dict[str, Any]:
    (loop,) = loops_of(cost.cubin)
    return {
        "instructions": loop.instructions, **loop.kinds, "registers": cost.registers, "spilled": cost.spilled,
        "advisories": len(cost.advisories),
    }  # fmt: skip


def of_backend() -> Iterator[tuple[str, dict[str, Any]]]:
    for each in cells():
        cost = aot.compiled(each.launch, 90)
        (loop,) = loops_of(cost.cubin)
        tiles = each.tiles
        row: dict[str, Any] = {"tiles": str(tiles), **figures(cost)}
        if each.kernel == "forward":
            tflops = estimated_tflops(loop, tiles.warps, tiles.queries, tiles.keys, each.features)
            row["estimated_tflops"] = round(tflops)
        yield each.name, row


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
        (theirs,), row = loops_of(cost.cubin), figures(cost)
        row |= {"tiles": str(YARDSTICK)}
        row["estimated_tflops"] = round(estimated_tflops(theirs, 8, queries, keys, width))
        yield f"forward, dense, D {width}", row


def of_fused_beside_tutorial(width: int) -> int:
    """Instructions of `fused` in one step, with the tutorial's tiles."""
    (loop,) = loops_of(aot.compiled(cell("forward", width, "dense", WHOLE, YARDSTICK).launch, 90).cubin)
    return loop.instructions


def main(words: Sequence[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tutorial", type=Path)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(words)
    version = ".".join(triton.__version__.split(".")[:2])
    record = json.loads(options.json.read_text()) if options.json and options.json.exists() else {"versions": {}}
    found = record["versions"].setdefault(version, {"triton": triton.__version__, "capability": "sm_90", "tutorial": {}})
    found["cells"] = dict(of_backend())
    if options.tutorial:
        found["tutorial"] = dict(of_tutorial(options.tutorial))
    for width in YARDSTICKS if found["tutorial"] else ():
        found["tutorial"][f"forward, dense, D {width}"]["instructions_of_fused"] = of_fused_beside_tutorial(width)
    if options.json:
        options.json.write_text(json.dumps(record, indent=1, sort_keys=True) + "\n")
    for name, row in found["tutorial"].items():
        ratio = row["instructions_of_fused"] / row["instructions"]
        print(
            f"{name}, tiles {row['tiles']}: {row['instructions_of_fused']} instructions, the tutorial's kernel "
            f"{row['instructions']}: {ratio:.2f}"
        )
    columns = ("instructions", "wgmma", "mma", "wait", "exp2", "cp.async", "tma", "registers", "estimated_tflops")
    table = Table("cell", "tiles", *columns, title=f"one step of each loop, per warp, sm_90, Triton {triton.__version__}")
    for name, row in found["cells"].items():
        table.add_row(name, row["tiles"], *(str(row.get(column, "")) for column in columns))
    Console(width=160).print(table)
    return found


if __name__ == "__main__":
    main()
