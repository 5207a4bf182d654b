"""The assembler of NVIDIA that Triton would compile kernels with, and the versions of it that are known to make wrong code."""

from __future__ import annotations

import os
import re
import subprocess
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from .installation import Findings

WRONG = {
    "12.8.61": "reads registers that nothing wrote", "12.8.93": "reads registers that nothing wrote, and wrong numbers",
    "12.9.41": "reads registers that nothing wrote", "12.9.86": "reported to fail (triton-lang/triton#11156)",
    "13.0.88": "reported to write to invalid shared memory (fla-org/flash-linear-attention#1262)",
}  # fmt: skip
"""What was seen of kernels for sm_90 (docs/upstream/ptxas-reads-before-writes.md)."""
FIX = (
    "pip install nvidia-cuda-nvcc (13.1 or newer), and set TRITON_PTXAS_PATH to its ptxas; `tfkit machine-code` checks kernels"
)


def ptxas_here(findings: Findings) -> dict[str, str | None] | None:
    """TRITON_PTXAS_PATH, else the one in Triton's wheel. A version that makes wrong code is a note, one that cannot be run a
    problem where the variable names it."""
    named = os.environ.get("TRITON_PTXAS_PATH")
    path = Path(named) if named else _of_triton()
    if path is None:
        return None
    version = version_of(path)
    if version is None and named:
        findings.problem(f"TRITON_PTXAS_PATH is {named}, which is no ptxas that can be run", "correct or unset the variable")
    if version in WRONG:
        findings.note(
            f"ptxas {version}, with which Triton would compile, makes wrong code of some kernels: {WRONG[version]}", FIX
        )
    return {"version": version, "path": str(path)}


def _of_triton() -> Path | None:
    try:
        path = Path(str(distribution("triton").locate_file("triton/backends/nvidia/bin/ptxas")))
    except PackageNotFoundError:
        return None
    return path if path.is_file() else None


def version_of(path: Path) -> str | None:
    """The version that a ptxas prints; None if it cannot be run."""
    try:
        output = subprocess.run([str(path), "--version"], capture_output=True, timeout=10, stdin=subprocess.DEVNULL).stdout
    except (OSError, ValueError, subprocess.TimeoutExpired):
        return None
    match = re.search(rb"ptxas.*?V(\d+\.\d+\.\d+)", output, re.DOTALL)
    return match[1].decode() if match else None
