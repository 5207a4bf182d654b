"""Describes the machine: device, versions, threads."""

from __future__ import annotations

import os
import platform
import warnings
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import torch

from tfkit import Catalogue

PACKAGES = ("tfkit", "torch", "triton", "flash-attn", "flash-attn-3", "flash-attn-4")


def machine_of(device: str, catalogue: Catalogue) -> dict[str, Any]:
    """`device`, `device_name`, `capability`, `threads`, `versions`, and of a GPU its processors, memory, cache and
    highest clock."""
    place = torch.device(device)
    found: dict[str, Any] = {
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
        found |= {
            "device_name": facts.name,
            "capability": [facts.major, facts.minor],
            "processors": facts.multi_processor_count,
            "memory_bytes": facts.total_memory,
            "cache_bytes": facts.L2_cache_size,
        }
        if (clock := getattr(facts, "clock_rate", None)) is not None:  # CUDA 13's own properties lack it
            found["clock_hertz"] = 1000 * clock
        found["versions"] |= {"cuda": torch.version.cuda, "cudnn": torch.backends.cudnn.version()}  # type: ignore[no-untyped-call]
    return found


def _versions(catalogue: Catalogue) -> dict[str, Any]:
    found: dict[str, Any] = {"python": platform.python_version()}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for package in PACKAGES:
            try:
                found[package] = version(package)
            except PackageNotFoundError:
                continue
    found["torch"] = torch.__version__
    found |= {distribution: number for _, distribution, number in catalogue.plugins if number and distribution not in found}
    return found


def _processor() -> str:
    """The processor's name from the system."""
    try:
        with open("/proc/cpuinfo", encoding="utf-8") as lines:
            names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    except OSError:
        names = []
    return names[0] if names else platform.processor() or platform.machine()
