"""The selection of a beam search's step, log-softmax and top-k, by each installed kernel.

    python bench/beam_top_k.py [--rounds 15]

This benchmark measures the `relative_time` of each kernel, in processor time of one thread.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import Any

import torch
from interleaved import report, timed

from tfkit.catalogue import load_catalogue
from tfkit.cpu.int8 import capabilities
from tfkit.cpu.malloc import keep_freed_memory
from tfkit.doctor.installation import machine_here
from tfkit.slots.lazy import load

SHAPES = "8x5x10000 50x5x10000 8x5x37000 35x5x37000 1x5x37000"


@torch.no_grad()
def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=SHAPES, help="sentences x beams x vocabulary, several in quotes")
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(1)
    keep_freed_memory()
    here = capabilities()
    entries = load_catalogue().entries("beam_top_k")
    kernels = {entry.name: load(entry.select) for entry in entries if all(here.get(name) for name in entry.needs)}
    total = {name: [0.0] * options.rounds for name in kernels}
    microseconds: dict[str, dict[str, float]] = {}
    for shape in options.shapes.split():
        sentences, beams, vocabulary = map(int, shape.split("x"))
        logits, totals = torch.randn(sentences * beams, vocabulary), -torch.rand(sentences, beams)
        ways = {name: lambda select=select: select(logits, totals, 2 * beams) for name, select in kernels.items()}  # noqa: B023
        seconds = timed(ways, options.rounds, clock=time.process_time)
        for name, taken in seconds.items():
            total[name] = [sum(pair) for pair in zip(total[name], taken, strict=True)]
        microseconds[shape] = {name: round(1e6 * sorted(taken)[len(taken) // 2], 1) for name, taken in seconds.items()}
        print(f"{shape:12}  " + "   ".join(f"{name} {taken:.0f} us" for name, taken in microseconds[shape].items()))
    facts = {name: machine_here()[name] for name in ("processor", "instructions")}
    title = "log-softmax and top-k of a step of beam search"
    return report(title, total, "torch", options.json, microseconds=microseconds, **facts)


if __name__ == "__main__":
    main()
