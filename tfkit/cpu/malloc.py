"""Lets glibc keep the memory that every step of a search frees and allocates again.

The logits of 175 rows over 37,000 words are 26 MB. By default glibc returns such a block to the system when it is freed. On the
next step the system maps and clears 6,000 pages again: a tenth of the CPU time of a beam search with transformer-base in int8.

Settings in the environment have precedence (`man mallopt`). Other allocators keep their own rules.
"""

from __future__ import annotations

import ctypes
import os
import platform
from functools import cache

MAX_FREE_BYTES = 256 * 2**20
"""Bytes of freed memory that a process keeps, and the size from which a block is returned in any case."""
_TRIM_THRESHOLD, _MMAP_THRESHOLD, _MMAP_MAX = -1, -3, -4
"""M_TRIM_THRESHOLD, M_MMAP_THRESHOLD and M_MMAP_MAX of malloc.h."""


@cache
def keep_freed_memory() -> None:
    """From now on this process keeps up to 256 MiB of freed memory."""
    names = ("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_")
    if any(name in os.environ for name in names) or "glibc.malloc" in os.environ.get("GLIBC_TUNABLES", ""):
        return
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):  # not glibc
        return
    mallopt(_MMAP_THRESHOLD, MAX_FREE_BYTES)
    mallopt(_TRIM_THRESHOLD, MAX_FREE_BYTES)


def keep_pages() -> bool:
    """Make glibc keep all freed memory; whether it does. An experiment compares this with `return_pages`."""
    if platform.libc_ver()[0] != "glibc":
        return False
    mallopt = ctypes.CDLL(None).mallopt
    return bool(mallopt(_MMAP_MAX, 0) and mallopt(_TRIM_THRESHOLD, 2**31 - 1))


def return_pages() -> None:
    """Make glibc return freed blocks of more than 32 MiB to the kernel at once, as it does for large blocks by default."""
    if platform.libc_ver()[0] == "glibc":
        libc = ctypes.CDLL(None)
        libc.mallopt(_MMAP_MAX, 65536)
        libc.mallopt(_MMAP_THRESHOLD, 2**25)
        libc.mallopt(_TRIM_THRESHOLD, 2**26)
        libc.malloc_trim(0)
