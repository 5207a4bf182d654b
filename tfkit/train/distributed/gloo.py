"""Groups of gloo, the transport between processors, that do one thing after the other.

torch gives each group two threads, and both write down the name of what they have done last without a lock
(`ProcessGroupGloo::runLoop`, torch 2.11 to 2.13). A name of more than 15 characters, such as the ALLGATHER_COALESCED by which
shards are collected, lies in memory of its own, which is freed twice where they meet. That is rare, and the process dies of it
later, wherever it may be. One thread has nobody to meet. All processes ask for the same in the same order, so that none waits
for what comes behind.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

from torch.distributed import distributed_c10d


@contextmanager
def of_one_thread() -> Iterator[None]:
    """The groups of gloo that are made inside have a thread each. torch hands the options of a group on to other transports
    alone, so that for the time being another class stands where it looks for gloo's."""
    torchs = distributed_c10d.ProcessGroupGloo

    class OneThread(torchs):  # type: ignore[misc, valid-type]
        def __init__(self, store: Any, rank: int, size: int, timeout: timedelta) -> None:
            names = [name for name in os.environ.get("GLOO_SOCKET_IFNAME", "").split(",") if name]
            options = torchs._Options()  # type: ignore[attr-defined]
            options._devices = [torchs.create_device(interface=name) for name in names] or [torchs.create_default_device()]
            options._threads, options._timeout = 1, timeout
            super().__init__(store, rank, size, options)

    distributed_c10d.ProcessGroupGloo = OneThread  # type: ignore[misc]
    try:
        yield
    finally:
        distributed_c10d.ProcessGroupGloo = torchs  # type: ignore[misc]
