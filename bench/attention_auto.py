"""Measures the rows by which `auto` chooses an attention backend on the CPU: time relative to `eager` on the same calls.

    python bench/attention_auto.py [--lengths 32 64 128] [--repeats 7]

Prints JSON, one row per class of calls. A class is measured with a causal mask and with key lengths; the row is the geometric
mean of the two. Backends take turns call by call on one thread, and medians of processor time are compared: with two threads
on a busy machine the same calls differed by a factor of seven.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch

from tfkit.builtin.attention.entries import EAGER, SDPA
from tfkit.plugin import AttentionInputs, DenseBias, Mask, load

HEADS, HEAD_DIM, TOKENS = 8, 64, 1024
CLASSES = (
    {"gradients": False, "dropout": False, "bias_gradient": False},
    {"gradients": False, "dropout": True, "bias_gradient": False},
    {"gradients": True, "dropout": False, "bias_gradient": False},
    {"gradients": True, "dropout": True, "bias_gradient": False},
    {"gradients": True, "dropout": False, "bias_gradient": True},
)


def call(length: int, dtype: torch.dtype, wanted: dict[str, bool], mask: Mask, batch: int) -> AttentionInputs:
    """One self-attention call of a class."""
    tensors = [torch.randn(batch, HEADS, length, HEAD_DIM).to(dtype).requires_grad_(wanted["gradients"]) for _ in range(3)]
    bias = DenseBias(torch.randn(HEADS, length, length).to(dtype).requires_grad_()) if wanted["bias_gradient"] else None
    return AttentionInputs(*tensors, mask, HEAD_DIM**-0.5, bias=bias, dropout=0.1 if wanted["dropout"] else 0.0)


def runner(entry: Any, inputs: AttentionInputs) -> Callable[[], None]:
    """What is timed: the call, and its backward where gradients are wanted."""
    attend, options = load(entry.attend), entry.options()
    leaves = [inputs.query, inputs.key, inputs.value] + ([inputs.bias.values] if isinstance(inputs.bias, DenseBias) else [])
    gradient = torch.ones(1, dtype=inputs.query.dtype).expand(*inputs.query.shape[:3], inputs.value.shape[3]).contiguous()

    def run() -> None:
        output = attend(inputs, options).output
        if output.requires_grad:
            torch.autograd.grad(output, leaves, gradient)

    return run


def relative(runs: list[Callable[[], None]], repeats: int) -> float:
    """Median time of the second over that of the first."""
    times: list[list[float]] = [[], []]
    for turn in range(repeats + 1):
        for run, spent in zip(runs, times, strict=True):
            start = time.process_time()
            run()
            if turn:
                spent.append(time.process_time() - start)
    return statistics.median(times[1]) / statistics.median(times[0])


def measure(lengths: list[int], repeats: int) -> list[dict[str, Any]]:
    """Every class at every length and dtype."""
    rows = []
    for dtype, wanted, length in itertools.product((torch.float32, torch.bfloat16, torch.float16), CLASSES, lengths):
        batch = max(1, TOKENS // length)
        padded = Mask(key_lengths=torch.randint(length // 2, length + 1, (batch,)))
        ratios = []
        for mask in (Mask(causal=True, offset=0), padded):
            inputs = call(length, dtype, wanted, mask, batch)
            ratios.append(relative([runner(EAGER, inputs), runner(SDPA, inputs)], repeats))
        mean = math.exp(statistics.fmean(map(math.log, ratios)))
        rows.append({"backend": "sdpa", "dtype": str(dtype)[6:], "length": length, **wanted, "relative_time": round(mean, 2)})
    return rows


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=int, nargs="+", default=[32, 64, 128, 256, 512])
    parser.add_argument("--repeats", type=int, default=7)
    chosen = parser.parse_args(arguments)
    torch.manual_seed(0)
    torch.set_num_threads(1)
    return {"torch": torch.__version__, "threads": 1, "rows": measure(chosen.lengths, chosen.repeats)}


if __name__ == "__main__":
    print(json.dumps(main(), indent=1))
