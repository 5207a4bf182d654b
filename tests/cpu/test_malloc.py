"""What a step of a search frees stays with the process, so that the next need not fetch it again page by page."""

import os
import platform
import subprocess
import sys

import pytest
import torch

from frameworks.small_models import build
from tfkit.cpu.malloc import keep_freed_memory

STEPS = """
import numpy
from tfkit.cpu.malloc import keep_freed_memory

{setup}

def step():
    first, second, third = (numpy.ones(blocks) for blocks in ({sizes}))

def resident():
    return int(open("/proc/self/statm").read().split()[1])

before = resident()
for _ in range(5):
    step()
print(resident() - before)
"""


def kept(setup, mebibytes=8, **settings):
    """Bytes that a process holds after some steps with three blocks, and did not before."""
    ambient = {name: value for name, value in os.environ.items() if not name.startswith(("MALLOC_", "GLIBC_", "LD_PRELOAD"))}
    code = STEPS.format(setup=setup, sizes=f"[{mebibytes} * 2**17] * 3")
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=ambient | settings)
    return int(done.stdout) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have rules of their own")
def test_freed_memory_is_kept():
    assert kept("keep_freed_memory()") > 16 * 2**20
    assert kept("keep_freed_memory()", mebibytes=40) > 100 * 2**20  # blocks that glibc maps one by one
    assert kept("") < 8 * 2**20


@pytest.mark.slow
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other allocators have rules of their own")
@pytest.mark.parametrize(
    "setting", [{"MALLOC_TRIM_THRESHOLD_": "131072"}, {"GLIBC_TUNABLES": "glibc.malloc.trim_threshold=131072"}]
)
def test_settings_of_the_environment_have_precedence(setting):
    assert kept("keep_freed_memory()", **setting) < 8 * 2**20


def test_decoding_asks_for_it():
    keep_freed_memory.cache_clear()
    model = build("tied")
    ids = torch.tensor([[3, 2]])
    model(source=ids, target=ids)
    assert keep_freed_memory.cache_info().currsize == 0
    model.start(source=ids)
    assert keep_freed_memory.cache_info().currsize == 1
