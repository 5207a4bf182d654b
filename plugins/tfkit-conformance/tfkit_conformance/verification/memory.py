"""Whether an exception says that memory ran out: then nothing is wrong with what was evaluated, and nothing is shown either.

torch has a type of its own for this on CUDA alone. A CPU, other devices and libraries say it in the words of a RuntimeError.
"""

from __future__ import annotations

import re

import torch

WORDS = re.compile(
    r"can't allocate memory|not enough memory|out of memory|_ALLOC_FAILED|Storage size calculation overflowed", re.IGNORECASE
)
WHERE_IN_TORCH = re.compile(r"^\[enforce fail at [^]]*\] [^.]*\. |\. Error code \d+ .*$")
FIX = "choose shorter --lengths, or fewer sites (--set a smaller num_layers)"


def no_room(reason: BaseException) -> str:
    """Why a run did not fit and what to do, or nothing where the exception is about something else."""
    said = _said(reason)
    return f"not enough memory: {said}; {FIX}" if said else ""


def _said(reason: BaseException) -> str:
    """What an allocator said, on one line, where the exception or its cause is about memory; else nothing."""
    if isinstance(reason, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(reason, RuntimeError) and WORDS.search(str(reason))
    ):
        first = next(iter(str(reason).strip().splitlines()), type(reason).__name__)
        return WHERE_IN_TORCH.sub("", first)[:200]
    return _said(reason.__cause__) if reason.__cause__ else ""
