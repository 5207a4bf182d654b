"""Attention of few queries or keys on a CPU: torch's fused kernel against two batched products, shape by shape.

    python bench/attention_few.py [--threads 1] [--rounds 31]

Measures what the limits in `tfkit/cpu/few_queries.py` are derived from: a shape is marked * where the rule takes the products.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from statistics import median
from typing import Any

import torch
from interleaved import report, timed

from tfkit.attention.types import AttentionInputs, Mask
from tfkit.builtin.attention import sdpa
from tfkit.builtin.attention.entries import SdpaOptions
from tfkit.cpu import few_queries
from tfkit.cpu.malloc import keep_freed_memory

SHAPES = (
    "300x4x1x8x32 300x4x1x12x32 300x4x1x16x32 300x4x1x20x32 300x4x1x60x32 48x4x5x8x32 48x4x5x20x32 48x4x5x60x32 "
    "300x4x12x12x32 48x4x30x12x32 48x4x20x20x32 100x8x12x12x64 100x8x1x6x64 100x8x1x20x64 30x8x5x20x64 8x8x1x20x64 "
    "4x8x1x20x64 1x8x1x20x64 1x8x1x500x64"
)


def call(B: int, H: int, Q: int, K: int, D: int) -> AttentionInputs:
    """As in decoding: queries of a projection, keys and values that are the first part of a cache, and padding."""
    query = torch.randn(B, Q, H, D).transpose(1, 2)
    key, value = (torch.randn(B, H, K + K // 2, D)[:, :, :K] for _ in range(2))
    inputs = AttentionInputs(query, key, value, Mask(key_lengths=torch.arange(B) % 2 + K - 1), D**-0.5)
    made = sdpa.prepare(inputs.mask, None, sdpa.shapes_of(inputs), SdpaOptions())
    return AttentionInputs(query, key, value, inputs.mask, D**-0.5, prepared=made)


@torch.no_grad()
def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shapes", default=SHAPES, help="rows x heads x queries x keys x head dim, several in quotes")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=31)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    keep_freed_memory()  # as decoding does
    clock = time.process_time if options.threads == 1 else time.perf_counter
    total: dict[str, list[float]] = {"torch's kernel": [0.0] * options.rounds, "products": [0.0] * options.rounds}
    microseconds: dict[str, dict[str, Any]] = {}
    for shape in options.shapes.split():
        inputs = call(*(int(size) for size in shape.split("x")))
        mask = inputs.prepared.payload[0] if inputs.prepared is not None else None
        candidates = {
            "torch's kernel": lambda: sdpa._call(inputs, mask, False),  # noqa: B023 - called in this round
            "products": lambda: few_queries.attend(inputs, mask),  # noqa: B023
        }
        seconds = timed(candidates, options.rounds, clock=clock)
        for name, taken in seconds.items():
            total[name] = [sum(pair) for pair in zip(total[name], taken, strict=True)]
        row = {name: round(1e6 * median(taken), 1) for name, taken in seconds.items()}
        microseconds[shape] = {**row, "the_rule_takes_products": few_queries.products_are_faster(inputs, mask)}
        print(f"{shape:16} " + "   ".join(f"{name} {rate:.0f} us" for name, rate in row.items()), end="")
        print(" *" if microseconds[shape]["the_rule_takes_products"] else "")
    return report("all shapes", total, "torch's kernel", options.json, microseconds=microseconds)


if __name__ == "__main__":
    main()
