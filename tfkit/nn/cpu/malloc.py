"""Memory that every step of a search takes, gives back and takes again.

The logits of 227 rows over 10,000 words are 9 MB. glibc hands so much back to the system when it is freed, and on the next
step the system hands it out again page by page, each cleared first: more than 1,000 pages a step, a fifth of the processor
time of greedy decoding with transformer-tiny in a process of its own.

How much glibc keeps is twice the largest block that it has seen freed, of blocks up to 32 MiB (`man mallopt`, under
M_MMAP_THRESHOLD). So it is shown one that large, which nobody has written to: it costs two system calls and no memory. What
other allocators do, and a glibc that was told a threshold by MALLOC_TRIM_THRESHOLD_ or MALLOC_MMAP_THRESHOLD_, stays as it is.
"""

from __future__ import annotations

from functools import cache

import numpy

LARGEST = 31 * 2**20
"""Bytes: the largest block that glibc learns from is one of 32 MiB, its own few bytes included."""


@cache
def raise_malloc_trim_threshold() -> None:
    """From now on this process keeps up to 62 MiB of what it frees."""
    numpy.empty(LARGEST, dtype=numpy.uint8)
