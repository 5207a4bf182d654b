"""Times one call: with the clock on a CPU, with CUDA events on a GPU.

On CUDA the second-level cache is overwritten before every call, so that no call finds its inputs there because the last one
left them, and the device is waited for after every call. The time runs from the first kernel's start to the last one's end,
gaps between launches included. Overwriting takes the device long enough for the first launches to be queued behind it.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from tfkit.commands import silent_libraries

Step = Callable[[], Any]

FLUSHED = 256 << 20
"""Bytes that are overwritten at least: several times the cache of any GPU so far."""


@dataclass(frozen=True)
class CpuClock:
    """Time of day, in seconds."""

    def time(self, step: Step) -> float:
        start = time.perf_counter()
        step()
        return time.perf_counter() - start

    def peak(self, step: Step) -> int | None:
        """The most bytes that torch's allocator held at once for the call, above what was there before; None where the
        profiler saw none. What libraries allocate for themselves is not seen."""
        watch = profile(activities=[ProfilerActivity.CPU], profile_memory=True, acc_events=True)
        with silent_libraries():  # the library of the profiler announces itself
            watch.start()
        try:
            step()
        finally:
            with silent_libraries():
                watch.stop()
        results: Any = watch.profiler.kineto_results if watch.profiler is not None else None
        events = [] if results is None else [event for event in results.events() if event.name() == "[memory]"]
        held = most = 0
        for event in sorted(events, key=lambda event: event.start_ns()):
            held += event.nbytes()
            most = max(most, held)
        return most if events else None

    memory = "torch's CPU allocator in one profiled call, above what was held before"


class CudaClock:
    """CUDA events on the current stream, in seconds."""

    memory = "torch.cuda.max_memory_allocated of one call, above what was held before"

    def __init__(self, device: str) -> None:
        self.device = torch.device(device)
        cache = torch.cuda.get_device_properties(self.device).L2_cache_size
        self.flushed = torch.empty(max(FLUSHED, 4 * cache), dtype=torch.int8, device=self.device)

    def time(self, step: Step) -> float:
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        with torch.cuda.device(self.device):
            self.flushed.zero_()
            start.record()
            step()
            end.record()
            torch.cuda.synchronize(self.device)
        return float(start.elapsed_time(end)) / 1e3

    def peak(self, step: Step) -> int | None:
        torch.cuda.synchronize(self.device)
        torch.cuda.reset_peak_memory_stats(self.device)
        before = torch.cuda.memory_allocated(self.device)
        step()
        torch.cuda.synchronize(self.device)
        return torch.cuda.max_memory_allocated(self.device) - before


Clock = CpuClock | CudaClock


def clock_of(device: str) -> Clock:
    return CudaClock(device) if device.startswith("cuda") else CpuClock()


@contextmanager
def bounded_memory(device: str) -> Iterator[None]:
    """On Linux, a CPU call that needs more memory than is free raises an exception instead of ending the
    process; afterwards the process may take what it could before."""
    if device != "cpu" or not sys.platform.startswith("linux"):
        yield
        return
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    with open("/proc/meminfo", encoding="ascii") as lines:
        facts = dict(line.split(":") for line in lines)
    with open("/proc/self/statm", encoding="ascii") as pages:
        taken = int(pages.read().split()[0]) * os.sysconf("SC_PAGE_SIZE")
    free = int(facts["MemAvailable"].split()[0]) << 10
    most = taken + free * 9 // 10
    resource.setrlimit(resource.RLIMIT_AS, (min(most, hard) if hard != resource.RLIM_INFINITY else most, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
