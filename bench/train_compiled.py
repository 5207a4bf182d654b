"""What `compile: true` is worth: a step of training compiled and not, on the same batches, and what compiling costs.

    python bench/train_compiled.py [--shapes 1] [--source train.en --target train.de] [--steps 8] [--threads 1 --cpu-time]

`as it was` takes its products from oneDNN where tfkit does (`tfkit/cpu/products.py`); torch's compiler takes them from MKL.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
import train_tokens
from interleaved import report, timed

from tfkit.data import batch_shapes
from tfkit.train.step import TrainStep


def step_of(step: TrainStep, compiled: bool, onednn: bool = True) -> Callable[[], Any]:
    """A step on the next batch, padded to its shape either way."""
    made, shapes = step.compiled, step.batches.shapes
    assert made is not None
    assert shapes is not None
    groups, draw = [rows.tolist() for rows in step.batches.epoch(1).batches], np.random.default_rng(0)
    batches = [shapes.padded(step.task.batch(step.data.train, rows, draw), rows, step.task) for rows in groups]
    at = 0

    def run() -> None:
        nonlocal at
        step.compiled, step.progress.batch = made if compiled else None, 0
        step._runner = made.module if compiled else step.model
        step.next_batches = lambda: range(at % len(batches), at % len(batches) + 1)  # type: ignore[method-assign]
        step.batch = lambda number: batches[number]  # type: ignore[method-assign]
        # As `torch.backends.mkldnn.flags` does, without its warning that Intel's GPUs are missing.
        torch._C._set_mkldnn_enabled(onednn)
        try:
            step.run()
        finally:
            torch._C._set_mkldnn_enabled(True)
            step.compiled = made
        at += 1

    return run


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--shape", choices=tuple(train_tokens.SHAPES), default="tiny")
    parser.add_argument("--shapes", type=int, default=1)
    parser.add_argument("--source", type=Path)
    parser.add_argument("--target", type=Path)
    parser.add_argument("--vocab", type=int, default=6000)
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--rows", type=int, default=4000)
    parser.add_argument("--layers", type=int, help="of either stack, instead of those of the spec")
    parser.add_argument("--steps", type=int, default=8)
    parser.add_argument("--threads", type=int)
    parser.add_argument("--cpu-time", action="store_true", help="processor time of all threads: fair on a busy machine")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    torch.manual_seed(0)
    if options.threads is not None:
        torch.set_num_threads(options.threads)
    clock = time.process_time if options.cpu_time else time.perf_counter
    batch_shapes.MAX_SHAPES = options.shapes
    with tempfile.TemporaryDirectory() as folder:
        layers = [f"nodes.{stack}.num_layers={options.layers}" for stack in ("encoder", "decoder") if options.layers]
        step = train_tokens.step_for(options, Path(folder), f"compile: true\nchanges: {json.dumps(layers, allow_nan=False)}\n")
        assert step.batches.shapes is not None
        epoch = step.batches.epoch(1)
        first = {step.batches.shapes.of(rows).limit: rows for rows in epoch.batches}
        epoch.batches[:] = list(first.values())
        candidates = {
            "compiled": step_of(step, True),
            "as it was": step_of(step, False),
            "as it was, MKL": step_of(step, False, False),
        }
        began = time.perf_counter()
        for _ in first:
            candidates["compiled"]()
        facts = {
            "seconds_to_compile": time.perf_counter() - began,
            "shapes": len(first),
            "padding": epoch.padding,
            "clock": "processor time" if options.cpu_time else "wall",
        }
        title = f"a step of training, transformer-{options.shape}, at most {options.tokens} tokens a side"
        return report(title, timed(candidates, options.steps, clock=clock), "as it was", options.json, **facts)


if __name__ == "__main__":
    main()
