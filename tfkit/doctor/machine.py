"""The processor, its memory, Python, and the environment variables that change how torch runs."""

from __future__ import annotations

import os
import platform
import re
import sys
from pathlib import Path
from typing import Any

INSTRUCTIONS = (
    "avx", "avx2", "fma", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8",
    "asimd", "bf16", "i8mm", "sve", "sve2",
)  # fmt: skip
"""The instruction sets for which torch or oneDNN have kernels, as Linux names them."""
VARIABLES = (
    "ATEN_CPU_CAPABILITY", "CUDA_VISIBLE_DEVICES", "LD_PRELOAD", "MKL_ENABLE_INSTRUCTIONS", "MKL_NUM_THREADS",
    "OMP_NUM_THREADS", "ONEDNN_MAX_CPU_ISA", "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF", "TRITON_INTERPRET",
)  # fmt: skip
DEVICE_ID = re.compile(r"(GPU|MIG)-[\w-]+")


def machine_here() -> dict[str, Any]:
    lines = _lines("/proc/cpuinfo")
    flags = set((_value(lines, "flags") or _value(lines, "Features")).split())
    return {
        "system": f"{platform.system()} {platform.machine()}",
        "processor": _value(lines, "model name") or platform.processor() or platform.machine(),
        "processors": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "instructions": [name for name in INSTRUCTIONS if name in flags],
    }


def python_here() -> dict[str, Any]:
    return {
        "version": platform.python_version(),
        "implementation": platform.python_implementation(),
        "path": sys.executable or "unknown",
    }


def variables() -> dict[str, str]:
    """The variables that are set. Identifiers of devices are left out."""
    return {name: DEVICE_ID.sub(r"\1-...", os.environ[name]) for name in VARIABLES if name in os.environ}


def _lines(path: str) -> list[str]:
    try:
        return Path(path).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return []


def _value(lines: list[str], name: str) -> str:
    return next((line.partition(":")[2].strip() for line in lines if line.split(":")[0].strip() == name), "")
