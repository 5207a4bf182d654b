"""`tfkit bench attention`: every backend at every cell, in one run, as data.

tfkit_bench         version of this form
command, seconds    what was run, how long it took
machine             device, device_name, capability, threads, versions, ... (see `machine_of`)
settings            dtype, rounds, budget, seed, tokens, width, cache (of the sizes), memory (how it was measured)
ceiling             flops and bytes per second of a large matrix product and a large copy
cells               name, family, training, shape, pairs, flops, bytes, and `backends`: name, status, reason, reasons,
                    seconds (every timed call), median, low, high (quartiles), flops_per_second, bytes_per_second, share (of
                    the ceiling that bounds the cell), peak_bytes, prepare_seconds, best_peer (time of the best other backend
                    over this one's: above 1 it is the fastest), worst_error (share of its bound), worst_tensor
missing             cell, reason: what was not run
interrupted         whether the run was interrupted
"""

from __future__ import annotations

import os
import platform
import random
import statistics
import time
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch
from torch import Tensor

import tfkit
from tfkit import Catalogue

from .call import Call, call_of, request_of
from .candidate import Candidate, DeviceLost, entered, guarded, prepare
from .cells import Cell, Scale
from .check import ReferenceCheck
from .timer import Clock, bounded_memory, clock_of

PACKAGES = ("tfkit", "torch", "triton", "flash-attn", "flash-attn-3", "flash-attn-4")


def machine_of(device: str, catalogue: Catalogue) -> dict[str, Any]:
    """`device`, `device_name`, `capability`, `threads`, `versions`, and of a GPU its processors, memory, cache and
    highest clock."""
    place = torch.device(device)
    machine: dict[str, Any] = {
        "device": place.type,
        "device_name": _processor(),
        "capability": None,
        "threads": torch.get_num_threads(),
        "processors": os.cpu_count(),
        "system": f"{platform.system()} {platform.machine()}",
        "versions": _versions(catalogue),
    }
    if place.type == "cuda":
        facts = torch.cuda.get_device_properties(place)
        machine |= {
            "device_name": facts.name,
            "capability": [facts.major, facts.minor],
            "processors": facts.multi_processor_count,
            "memory_bytes": facts.total_memory,
            "cache_bytes": facts.L2_cache_size,
        }
        if (clock := getattr(facts, "clock_rate", None)) is not None:  # CUDA 13's own properties lack it
            machine["clock_hertz"] = 1000 * clock
        machine["versions"] |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}  # type: ignore[no-untyped-call]
    return machine


def _versions(catalogue: Catalogue) -> dict[str, Any]:
    versions: dict[str, Any] = {"python": platform.python_version()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for package in PACKAGES:
            try:
                versions[package] = tfkit.__version__ if package == "tfkit" else version(package)
            except PackageNotFoundError:
                continue
    versions["torch"] = torch.__version__
    versions |= {
        distribution: number for _, distribution, number in catalogue.plugins if number and distribution not in versions
    }
    return versions


def _processor() -> str:
    """The processor's name from the system."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()


ROUNDS = 7
SIDE = {"cuda": 8192, "cpu": 1536}
COPIED = {"cuda": 2 << 30, "cpu": 256 << 20}
"""Bytes that are read, and as many that are written."""


def ceiling_of(clock: Clock, dtype: torch.dtype, device: str) -> dict[str, float]:
    """`flops`, in operations per second (2 n^3 for a product of n x n matrices) in the dtype, and `bytes` per second read and
    written."""
    kind = torch.device(device).type
    side = SIDE[kind]
    left, right = (torch.randn(side, side, device=device).to(dtype) for _ in range(2))
    product = torch.empty(side, side, dtype=dtype, device=device)
    read = torch.ones(COPIED[kind], dtype=torch.uint8, device=device)
    written = torch.empty_like(read)

    def multiply() -> Tensor:
        return torch.matmul(left, right, out=product)

    def copy() -> Tensor:
        return written.copy_(read)

    rates = {}
    for name, step, work in (("flops", multiply, 2 * side**3), ("bytes", copy, 2 * read.numel())):
        for _ in range(2):
            step()
        rates[name] = work / statistics.median(clock.time(step) for _ in range(ROUNDS))
    return rates


def higher(first: dict[str, float], second: dict[str, float]) -> dict[str, float]:
    """The larger of two measurements, one by one."""
    return {name: max(first.get(name, 0.0), second.get(name, 0.0)) for name in {**first, **second}}


FORM = 1
Progress = Callable[[str], None]


@dataclass(frozen=True)
class Settings:
    """`rounds` turns of every backend at every cell, fewer where `budget` seconds in all ask for it (None: no end)."""

    device: str
    dtype: str
    rounds: int
    scale: Scale
    budget: float | None = None
    seed: int = 0


def run_cells(
    cells: Sequence[Cell],
    backends: Sequence[tuple[Any, Any]],
    catalogue: Catalogue,
    settings: Settings,
    command: str,
    progress: Progress = lambda words: None,
) -> dict[str, Any]:
    """Measures the cells; `progress` is called with the next step in words. After an interruption the report holds all that
    was measured before it."""
    begun, clock = time.monotonic(), clock_of(settings.device)
    data: dict[str, Any] = {
        "tfkit_bench": FORM,
        "command": command,
        "seconds": 0.0,
        "machine": machine_of(settings.device, catalogue),
        "settings": {
            "dtype": settings.dtype, "rounds": settings.rounds, "budget": settings.budget, "seed": settings.seed,
            "tokens": settings.scale.tokens, "width": settings.scale.width, "cache": settings.scale.cache,
            "memory": clock.memory,
        },
        "ceiling": {},
        "cells": [],
        "missing": [],
        "interrupted": False,
    }  # fmt: skip
    dtype, reason = getattr(torch, settings.dtype), "interrupted"
    try:
        with bounded_memory(settings.device):
            progress("ceilings")
            data["ceiling"] = ceiling_of(clock, dtype, settings.device)
            for number, cell in enumerate(cells):
                left = None if settings.budget is None else settings.budget - (time.monotonic() - begun)
                if left is not None and left <= 0:
                    reason = f"the budget of {settings.budget:g} s was spent"
                    break
                share = None if left is None else left / (len(cells) - number)
                progress(f"{number + 1} of {len(cells)}, {cell.name}")
                run_cell(cell, backends, settings, clock, share, data)
            progress("ceilings again")
            data["ceiling"] = higher(data["ceiling"], ceiling_of(clock, dtype, settings.device))
    except KeyboardInterrupt:
        data["interrupted"] = True
    except DeviceLost as lost:
        reason = f"the device was lost to {lost}"
    done = {row["name"] for row in data["cells"]}
    data["missing"] += [{"cell": cell.name, "reason": reason} for cell in cells if cell.name not in done]
    data["seconds"] = time.monotonic() - begun
    for row in data["cells"]:
        _rate(row, data["ceiling"])
    return data


def run_cell(
    cell: Cell, backends: Sequence[tuple[Any, Any]], settings: Settings, clock: Clock, share: float | None, data: dict[str, Any]
) -> None:
    """One cell, added to `data` with what was measured of it, also when it is interrupted."""
    candidates: list[Candidate] = []
    call: Call | None = None
    if settings.device.startswith("cuda"):
        torch.compiler.reset()  # what compiles does so for the shapes of this cell, and meets no limit of recompilations
    try:
        call = _made(cell, settings, data)
        if call is None:
            return
        capability = data["machine"]["capability"]
        request = request_of(call, tuple(capability) if capability else None)
        candidates = [entered(entry, options, call, request) for entry, options in backends]
        _measure(candidates, ReferenceCheck(call), clock, settings, share)
    except KeyboardInterrupt:
        for candidate in candidates:
            if candidate.running and not candidate.seconds:
                candidate.stop("skipped", "interrupted")
        raise
    finally:
        if call is not None and any(candidate.seconds or not candidate.running for candidate in candidates):
            data["cells"].append(_row(call, candidates))


def _made(cell: Cell, settings: Settings, data: dict[str, Any]) -> Call | None:
    try:
        return call_of(cell, settings.scale, getattr(torch, settings.dtype), settings.device, settings.seed)
    except (RuntimeError, MemoryError) as reason:  # torch's allocator raises either
        message = " ".join(str(reason).split())[:200]
        data["missing"].append({"cell": cell.name, "reason": f"its tensors could not be made: {message}"})
        return None


def _measure(
    candidates: list[Candidate], evaluated: ReferenceCheck, clock: Clock, settings: Settings, share: float | None
) -> None:
    """Warm up, then rounds in which each takes its turn, in another order every time."""
    begun = time.monotonic()
    able = [candidate for candidate in candidates if candidate.running]
    longest = float("inf") if share is None else share
    round_time = sum(
        prepare(candidate, evaluated, clock, settings.device, longest) for candidate in able if candidate.backend is not None
    )
    rounds = settings.rounds
    if share is not None and round_time > 0:
        rounds = max(1, min(rounds, int((share - (time.monotonic() - begun)) / round_time)))
    order = random.Random(settings.seed)
    for _ in range(rounds):
        turn = [candidate for candidate in able if candidate.running]
        order.shuffle(turn)
        for candidate in turn:
            with guarded(candidate, settings.device):
                candidate.seconds.append(clock.time(candidate.step))


def _row(call: Call, candidates: list[Candidate]) -> dict[str, Any]:
    medians = {candidate.name: median for candidate in candidates if (median := candidate.median()) is not None}
    rows = []
    for candidate in candidates:
        median = medians.get(candidate.name)
        low, high = _quartiles(candidate.seconds)
        others = [time for name, time in medians.items() if name != candidate.name]
        rows.append({
            "name": candidate.name, "status": candidate.status, "reason": candidate.reason, "reasons": list(candidate.reasons),
            "seconds": candidate.seconds, "median": median, "low": low, "high": high,
            "flops_per_second": call.flops / median if median else None,
            "bytes_per_second": call.bytes / median if median and call.cell.decode else None,
            "share": None, "peak_bytes": candidate.peak_bytes, "prepare_seconds": candidate.prepare_seconds,
            "best_peer": min(others) / median if median and others else None,
            "worst_error": candidate.worst_error, "worst_tensor": candidate.worst_tensor,
        })  # fmt: skip
    return {
        "name": call.cell.name, "family": call.cell.family, "training": call.cell.training, "decode": call.cell.decode,
        "shape": call.shape(), "pairs": call.pairs, "flops": call.flops, "bytes": call.bytes, "backends": rows,
    }  # fmt: skip


def _quartiles(seconds: list[float]) -> tuple[float | None, float | None]:
    if len(seconds) < 2:
        return (seconds[0], seconds[0]) if seconds else (None, None)
    low, _, high = statistics.quantiles(seconds, n=4, method="inclusive")
    return low, high


def _rate(row: dict[str, Any], ceiling: dict[str, float]) -> None:
    """The share of the ceiling that bounds a cell: bytes where it decodes, else operations."""
    rate, most = ("bytes_per_second", ceiling.get("bytes")) if row["decode"] else ("flops_per_second", ceiling.get("flops"))
    for backend in row["backends"]:
        if backend[rate] is not None and most:
            backend["share"] = backend[rate] / most
