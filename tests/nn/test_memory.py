"""What a step of a search frees stays with the process, so that the next need not fetch it again page by page."""

import os
import platform
import subprocess
import sys

import pytest
import torch

from tfkit.nn.cpu.malloc import raise_malloc_trim_threshold

STEPS = """
import numpy
from tfkit.nn.cpu.malloc import raise_malloc_trim_threshold

{setup}

def step():
    first, second, third = (numpy.ones(2**20) for _ in range(3))

def resident():
    return int(open("/proc/self/statm").read().split()[1])

before = resident()
for _ in range(5):
    step()
print(resident() - before)
"""


def kept(setup):
    """Bytes that a process holds after some steps of 24 MiB, and did not before."""
    ambient = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_", "LD_PRELOAD"))}
    code = STEPS.format(setup=setup)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ambient)
    return int(done.stdout) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have rules of their own")
def test_freed_memory_is_kept():
    assert kept("raise_malloc_trim_threshold()") > 16 * 2**20
    assert kept("") < 8 * 2**20


def test_decoding_asks_for_it(model_of):
    raise_malloc_trim_threshold.cache_clear()
    model = model_of()
    ids = torch.tensor([[3, 2]])
    model(source=ids, target=ids)
    assert raise_malloc_trim_threshold.cache_info().currsize == 0
    model.start(source=ids)
    assert raise_malloc_trim_threshold.cache_info().currsize == 1
