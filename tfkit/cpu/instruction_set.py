"""The instruction set of torch's kernels, without torch: certificates name it."""

from __future__ import annotations

import os
from contextlib import suppress


def instruction_set() -> str:
    """The instruction set for which torch chooses its CPU kernels: "AVX512", "AVX2" or "DEFAULT"."""
    asked = {"avx512": "AVX512", "avx2": "AVX2", "default": "DEFAULT"}.get(os.environ.get("ATEN_CPU_CAPABILITY", "").lower())
    flags: set[str] = set()
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        flags = set(next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split())
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl", "fma"} <= flags:
        found = "AVX512"
    else:
        found = "AVX2" if {"avx2", "fma"} <= flags else "DEFAULT"
    return asked or found
