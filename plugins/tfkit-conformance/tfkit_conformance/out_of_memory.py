"""Recognises a lack of memory. A check that ran out of memory neither failed nor passed.

torch has an exception type for this on CUDA only. Elsewhere it raises a RuntimeError with a message.
"""

from __future__ import annotations

import re

import torch

WORDS = re.compile(
    r"can(no|')t allocate memory|not enough memory|out of memory|_ALLOC_FAILED|Storage size calculation overflowed",
    re.IGNORECASE,
)
WHERE_IN_TORCH = re.compile(r"^\[enforce fail at [^]]*\] [^.]*\. |\. Error code \d+ .*$")
FIX = "choose shorter --lengths, or fewer sites (--set a smaller num_layers)"


def no_room(reason: BaseException) -> str:
    """Why a run did not fit, and the fix; "" if the exception is about something else."""
    message = allocator_message(reason)
    return f"not enough memory: {message}; {FIX}" if message else ""


def allocator_message(reason: BaseException) -> str:
    """The message of the allocator on one line if the exception or its cause is about memory, else ""."""
    if isinstance(reason, (MemoryError, torch.OutOfMemoryError)) or (
        isinstance(reason, (RuntimeError, OSError)) and WORDS.search(str(reason))
    ):
        first = next(iter(str(reason).strip().splitlines()), type(reason).__name__)
        return WHERE_IN_TORCH.sub("", first)[:200]
    return allocator_message(reason.__cause__) if reason.__cause__ else ""
