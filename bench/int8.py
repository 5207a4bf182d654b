"""int8 products, rounding the activations included, against the fastest float32 product, shape by shape.

    python bench/int8.py [--rounds 9]

The limits in `tfkit/cpu/int8.py` come from these times: processor time of one thread.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from interleaved import report, timed
from torch.nn import functional

from tfkit.catalogue import load_catalogue
from tfkit.cpu import int8, products
from tfkit.cpu.malloc import keep_freed_memory
from tfkit.doctor.installation import machine_here

WEIGHTS = "128x128 256x128 8000x128 512x512 2048x512 512x2048 32000x512"
ROWS = "1 5 16 80 320"
FLOAT32, FASTEST = ("MKL", "oneDNN packed"), "float32"


@torch.no_grad()
def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default=WEIGHTS, help="out x in, several in quotes")
    parser.add_argument("--rows", default=ROWS)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    keep_freed_memory()
    product = products.PRODUCT = products.probe()
    pack = products.probe_packing()
    kernels = [kernel for kernel in load_catalogue().entries("int8_kernel") if int8.is_supported(kernel)]
    microseconds: dict[str, dict[str, float]] = {}
    total: dict[str, list[float]] = {
        name: [0.0] * options.rounds for name in (FASTEST, *(kernel.summary for kernel in kernels))
    }
    for shape in options.weights.split():
        outer, inner = (int(size) for size in shape.split("x"))
        weight = torch.randn(outer, inner)
        weights = {kernel.summary: int8.Int8Weight(weight, kernel) for kernel in kernels}
        prepacked = pack(weight, None) if pack else None
        for rows in map(int, options.rows.split()):
            x = torch.randn(rows, inner)
            ways: dict[str, Callable[[], Any]] = {"MKL": lambda: functional.linear(x, weight)}  # noqa: B023
            if pack and product:
                ways["oneDNN packed"] = lambda: product(x, prepacked, None, "none", [], "")  # noqa: B023
            ways |= {name: lambda each=each: each.product(x) for name, each in weights.items()}  # type: ignore[misc] # noqa: B023
            seconds = timed(ways, options.rounds, clock=time.process_time)
            row = {name: round(1e6 * median(taken), 1) for name, taken in seconds.items()}
            fastest = min((name for name in FLOAT32 if name in row), key=row.__getitem__)
            seconds[FASTEST] = seconds[fastest]
            for name in total:
                total[name] = [sum(pair) for pair in zip(total[name], seconds[name], strict=True)]
            microseconds[f"{rows} x {shape}"] = row
            print(f"{shape:10} {rows:4} rows  " + "   ".join(f"{name} {taken:.0f} us" for name, taken in row.items()))
    here = {name: machine_here()[name] for name in ("processor", "instructions")}
    title = "int8 products of all weights and rows"
    return report(title, total, FASTEST, options.json, microseconds=microseconds, **here)


if __name__ == "__main__":
    main()
