"""Products of few rows: by MKL, by oneDNN with plain and with packed weights, W times the rows as columns, and the installed
kernels (`tfkit.plugin.Float32Kernel`); and packing.

    python bench/packed.py [--threads 1] [--rounds 21]

Measures what the rules in `tfkit/cpu/small_batch.py` and `packed_weight.py` are derived from. Processor time where there is one
thread.
"""

from __future__ import annotations

import argparse
import time
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from interleaved import report, timed

from tfkit.catalogue import load_catalogue
from tfkit.cpu import products
from tfkit.cpu.float32 import is_supported
from tfkit.cpu.malloc import keep_freed_memory
from tfkit.cpu.product_table import product_kernels
from tfkit.doctor.installation import machine_here
from tfkit.slots.lazy import load

WEIGHTS = "128x128 128x256 10000x128 512x512 2048x512 37000x512"
LABELS = {"MKL": "mkl", "oneDNN": "onednn", "packed": "packed", "transposed": "transposed"}
ROWS = "1 2 3 5 8 16 25 40 100 300"


@torch.no_grad()
def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--weights", default=WEIGHTS, help="out x in, several in quotes")
    parser.add_argument("--rows", default=ROWS)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=21)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    keep_freed_memory()
    pack = products.probe_packing()
    if pack is None:
        raise SystemExit("this torch packs no weights")
    installed = [entry for entry in load_catalogue().entries("float32_kernel") if is_supported(entry)]
    clock = time.process_time if options.threads == 1 else time.perf_counter
    microseconds: dict[str, dict[str, float]] = {}
    total: dict[str, list[float]] = {name: [0.0] * options.rounds for name in (*LABELS, *(entry.name for entry in installed))}
    for shape in options.weights.split():
        outer, inner = (int(size) for size in shape.split("x"))
        weight, bias = torch.randn(outer, inner), torch.randn(outer)
        packing = timed({"pack": lambda: pack(weight, None)}, 5, clock=clock)["pack"]  # noqa: B023 - called in this round
        kernels = product_kernels(weight, bias)
        multiplied = {entry.name: (load(entry.multiply), load(entry.pack)(weight)) for entry in installed}
        print(f"{shape}: packing takes {1e6 * median(packing):.0f} us")
        for rows in map(int, options.rows.split()):
            x = torch.randn(rows, inner)
            candidates = {label: partial(kernels[name], x) for label, name in LABELS.items()}
            candidates |= {name: partial(multiply, x, packed, bias) for name, (multiply, packed) in multiplied.items()}
            seconds = timed(candidates, options.rounds, clock=clock)
            for name, taken in seconds.items():
                total[name] = [sum(pair) for pair in zip(total[name], taken, strict=True)]
            row = {name: round(1e6 * median(taken), 1) for name, taken in seconds.items()}
            microseconds[f"{rows} x {shape}"] = {**row, "packing": round(1e6 * median(packing), 1)}
            print(f"  {rows:4} rows  " + "   ".join(f"{name} {taken:.0f} us" for name, taken in row.items()))
    here = {name: machine_here()[name] for name in ("processor", "instructions")}
    return report("all weights and rows", total, "MKL", options.json, microseconds=microseconds, **here)


if __name__ == "__main__":
    main()
