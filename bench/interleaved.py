"""Timing rivals in one run: warm-up, then rounds in which each takes its turn, so that a noisy machine is noisy for all.

Ratios of medians are what the benchmarks report; the times beside them are this machine's.
"""

from __future__ import annotations

import json
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table


def timed(
    candidates: dict[str, Callable[[], Any]], rounds: int, warm_up: int = 2, clock: Callable[[], float] = time.perf_counter
) -> dict[str, list[float]]:
    """Seconds of every call, `rounds` per rival, by a clock: that on the wall, or the processor time of all threads."""
    for candidate in candidates.values():
        for _ in range(warm_up):
            candidate()
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, candidate in candidates.items():
            start = clock()
            candidate()
            seconds[name].append(clock() - start)
    return seconds


def versions() -> dict[str, Any]:
    """What a figure depends on."""
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else platform.processor() or platform.machine()
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "device": device,
        "threads": torch.get_num_threads(),
    }


def report(title: str, seconds: dict[str, list[float]], base: str, path: Path | None = None, **facts: Any) -> dict[str, Any]:
    """Print medians, spread and speed relative to `base` (above 1: faster than base), and write them as JSON where asked to."""
    medians = {name: statistics.median(times) for name, times in seconds.items()}
    table = Table("", "median ms", "min", "max", f"speed / {base}", title=title)
    for name, times in seconds.items():
        row = (medians[name], min(times), max(times))
        table.add_row(name, *(f"{1e3 * value:.2f}" for value in row), f"{medians[base] / medians[name]:.2f}")
    Console().print(table)
    result = {
        "title": title,
        "command": " ".join(["python", *sys.argv]),
        **versions(),
        **facts,
        "median_seconds": medians,
        "speed_relative_to": base,
        "speed": {name: medians[base] / median for name, median in medians.items()},
        "seconds": seconds,
    }
    if path is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return result
