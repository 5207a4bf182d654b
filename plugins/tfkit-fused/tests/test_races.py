"""The same call gives the same bits, however often, forward and backward: programs that raced would not. On a CUDA device a
thousand times with the tiles of its table, and under compute-sanitizer where that is installed."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from sanitised import CALLS, results
from where import DEVICE, runs

TIMES = 1000 if DEVICE == "cuda" else 2
DTYPES = ["float32", "float16", "bfloat16"] if DEVICE == "cuda" else ["float32"]
"""The interpreter runs one program after the other, and cannot race in any dtype: there the calls themselves are tried."""
TOOLS = {"memcheck": ("--leak-check", "no"), "racecheck": (), "synccheck": (), "initcheck": ()}


@runs
@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("name", CALLS)
def test_a_thousand_times_the_same_bits(name, dtype):
    first = results(name, dtype, DEVICE)
    output, _, *gradients = first  # the log-sum-exp of a fully masked row is -inf
    assert len(gradients) == 3 + (CALLS[name].bias is not None)
    assert all(torch.isfinite(each).all() for each in (output, *gradients))
    for _ in range(1, TIMES):
        again = results(name, dtype, DEVICE)
        assert all(torch.equal(one, other) for one, other in zip(first, again, strict=True))


@runs
@pytest.mark.skipif(DEVICE != "cuda" or shutil.which("compute-sanitizer") is None, reason="not run: no compute-sanitizer")
@pytest.mark.parametrize("tool", TOOLS)
def test_the_sanitizer_finds_nothing(tool):
    script = str(Path(__file__).parent / "sanitised.py")
    command = ["compute-sanitizer", "--tool", tool, *TOOLS[tool], "--error-exitcode", "9", sys.executable, script]
    # torch's allocator keeps memory, in which a read beyond a tensor would go unnoticed.
    environment = {**os.environ, "PYTORCH_NO_CUDA_MEMORY_CACHING": "1", "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False, env=environment)
    assert done.returncode == 0, done.stdout[-4000:]
    assert "ERROR SUMMARY: 0 errors" in done.stdout or "0 hazards" in done.stdout, done.stdout[-4000:]
