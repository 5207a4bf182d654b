"""Recognises exceptions of allocators. A check that ran out of memory neither failed nor passed.

torch has an exception type for this on CUDA only. Elsewhere it is a RuntimeError with a message.
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
    """The message of an allocator on one line, where the exception or its cause is about memory; else empty."""
    if isinstance(reason, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(reason, RuntimeError) and WORDS.search(str(reason))
    ):
        first = next(iter(str(reason).strip().splitlines()), type(reason).__name__)
        return WHERE_IN_TORCH.sub("", first)[:200]
    return _said(reason.__cause__) if reason.__cause__ else ""
