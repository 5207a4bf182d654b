"""The head and the loss of a step of training: all logits at once against chunks of tokens (`tfkit/train/loss.py`), by
processor time, and the memory that each adds at its peak, in a process of its own.

    python bench/chunked_loss.py [--json FILE]
"""

from __future__ import annotations

import argparse
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from interleaved import report, timed

from tfkit.cpu.products import linear
from tfkit.doctor.installation import machine_here
from tfkit.train.loss import chunked_cross_entropy, smoothed_cross_entropy

SHAPES = ((256, 6000, 128), (1024, 6000, 128), (2048, 6000, 128), (512, 32000, 512), (2048, 32000, 512))
"""Tokens, vocabulary, width."""
PADDING = 0.1
ALL, CHUNKS = "all logits", "chunks"


def step(way: str, tokens: int, vocabulary: int, width: int) -> Callable[[], Any]:
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(tokens, width, generator=draw).requires_grad_()
    weight = (0.05 * torch.randn(vocabulary, width, generator=draw)).requires_grad_()
    labels = torch.randint(1, vocabulary, (tokens,), generator=draw)
    labels[: int(PADDING * tokens)] = -1

    def run() -> None:
        x.grad = weight.grad = None
        if way == ALL:
            loss = smoothed_cross_entropy(linear(x, weight, None), labels, 0.1, "uniform", -1).loss
        else:
            loss = chunked_cross_entropy(x, weight, None, labels, 0.1, "uniform", -1).loss
        loss.backward()  # type: ignore[no-untyped-call]

    return run


def peak() -> int:
    """Bytes of memory of this process at its peak."""
    lines = Path("/proc/self/status").read_text(encoding="utf-8").splitlines()
    return 1024 * int(next(line for line in lines if line.startswith("VmHWM")).split()[1])


def memory(way: str, shape: tuple[int, ...], threads: int) -> int:
    """Bytes that a step adds to the peak."""
    program = [sys.executable, __file__, "--memory", way, *map(str, shape), "--threads", str(threads)]
    return int(subprocess.run(program, check=True, capture_output=True, text=True).stdout)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--shapes", type=int, nargs="+", help="tokens, vocabulary and width of one shape, then of the next")
    parser.add_argument("--memory", nargs=4, metavar=("WAY", "TOKENS", "VOCABULARY", "WIDTH"), help=argparse.SUPPRESS)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)
    if options.memory:
        way, *sizes = options.memory
        step(way, 4, 50, 8)()  # what the first call of anything needs is not counted
        run = step(way, *map(int, sizes))
        before = peak()
        run()
        print(peak() - before)
        return {}
    flat = options.shapes
    shapes = tuple(zip(flat[::3], flat[1::3], flat[2::3], strict=True)) if flat else SHAPES
    seconds: dict[str, list[float]] = {ALL: [0.0] * options.rounds, CHUNKS: [0.0] * options.rounds}
    rows: list[dict[str, Any]] = []
    for shape in shapes:
        timings = timed({way: step(way, *shape) for way in seconds}, options.rounds, clock=time.process_time)
        bytes_of = {way: memory(way, shape, options.threads) for way in seconds}
        medians = {way: sorted(each)[len(each) // 2] for way, each in timings.items()}
        for way, each in timings.items():
            seconds[way] = [one + more for one, more in zip(seconds[way], each, strict=True)]
        rows.append({"tokens": shape[0], "vocabulary": shape[1], "width": shape[2], "seconds": medians, "bytes": bytes_of})
        faster, less = medians[ALL] / medians[CHUNKS], bytes_of[CHUNKS] / max(1, bytes_of[ALL])
        print(f"{shape[0]} tokens, {shape[1]} x {shape[2]}: chunks {faster:.2f} x as fast, memory {less:.2f} x")
    machine = machine_here()
    facts = {"clock": "processor time", "shapes": rows}
    facts |= {"processor": machine["processor"], "instructions": machine["instructions"]}
    return report(f"head and loss of a step, {len(shapes)} shapes", seconds, ALL, options.json, **facts)


if __name__ == "__main__":
    main()
