"""The instruction sets that kernels may use here, without torch: those of the processor that ATEN_CPU_CAPABILITY allows.
Certificates name the one that torch chooses."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

_AVX512 = ("avx512", "avx_vnni", "amx")


def _limit() -> str | None:
    return {"avx512": "AVX512", "avx2": "AVX2", "default": "DEFAULT"}.get(os.environ.get("ATEN_CPU_CAPABILITY", "").lower())


def instruction_set() -> str:
    """The instruction set for which torch chooses its CPU kernels: "AVX512", "AVX2" or "DEFAULT"."""
    flags: set[str] = set()
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8", errors="replace") as lines:
        flags = set(next((line.partition(":")[2] for line in lines if line.startswith("flags")), "").split())
    if {"avx512f", "avx512bw", "avx512dq", "avx512vl", "fma"} <= flags:
        of_processor = "AVX512"
    else:
        of_processor = "AVX2" if {"avx2", "fma"} <= flags else "DEFAULT"
    return _limit() or of_processor


def allowed(capabilities: Mapping[str, Any]) -> dict[str, Any]:
    """What torch knows about the processor, without the instructions that ATEN_CPU_CAPABILITY=avx2 excludes."""
    limited = _limit() == "AVX2"
    return {name: has for name, has in capabilities.items() if not (limited and name.startswith(_AVX512))}
