"""How long a launch takes on a CUDA device, without what the host takes to make it."""

from __future__ import annotations

import statistics
from collections.abc import Callable

import torch

WARM_UP = 3
ROUNDS = 15
AHEAD = 2_000_000
"""Cycles, about a millisecond, that the device waits before each run, so that all of the run is queued when it begins."""


def milliseconds(run: Callable[[], object]) -> float:
    """The median of some runs, after a few that compile and warm up; on the current device and stream."""
    for _ in range(WARM_UP):
        run()
    events = []
    for _ in range(ROUNDS):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        torch.cuda._sleep(AHEAD)
        begin.record()
        run()
        end.record()
        events.append((begin, end))
    torch.cuda.synchronize()
    return statistics.median(begin.elapsed_time(end) for begin, end in events)
