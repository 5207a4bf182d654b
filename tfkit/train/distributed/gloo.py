"""Gloo process groups with one worker thread each.

torch gives each gloo group two threads, and both write the name of their last operation without a lock
(`ProcessGroupGloo::runLoop`, torch 2.11 to 2.13). A name of more than 15 characters, such as the ALLGATHER_COALESCED of FSDP2,
is allocated on the heap. If both threads write at once, it is freed twice, and the process crashes later. A single worker
cannot race. All processes start the same collectives in the same order, so no collective waits for a later one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from torch.distributed import distributed_c10d


@contextmanager
def single_threaded_gloo() -> Iterator[None]:
    """A context in which new gloo groups have one thread. torch does not pass group options to gloo, so its gloo class is
    replaced inside the context."""
    original = distributed_c10d.ProcessGroupGloo

    class SingleThreaded(original):  # type: ignore[misc, valid-type]
        def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
            names = [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
            options = original._Options()  # type: ignore[attr-defined]
            options._devices = [original.create_device(interface=name) for name in names] or [original.create_default_device()]
            options._threads, options._timeout = 1, timeout
            super().__init__(store, rank, size, options)

    distributed_c10d.ProcessGroupGloo = SingleThreaded  # type: ignore[misc]
    try:
        yield
    finally:
        distributed_c10d.ProcessGroupGloo = original  # type: ignore[misc]
