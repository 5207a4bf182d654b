"""Batches of sentences side by side on a CPU.

A step of decoding is a hundred small operations. Threads that share each of them wait for one another a hundred times a step,
and on a busy machine for the slowest; threads with batches of their own meet in Python alone, which torch leaves while it
computes. `bench/translate.py --threads 2` compares the two, with `--workers 2` and without.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from ..nn.model import Model

Batch = TypeVar("Batch")
Made = TypeVar("Made")
_SHARED_OUT = threading.Lock()
"""How many threads torch takes is a number of the whole process: one caller at a time changes it, and leaves it as it was."""


def map_in_threads(work: Callable[[Batch], Made], batches: Sequence[Batch], workers: int) -> list[Made]:
    """`work` of every batch, in their order, `workers` at once; torch's threads are shared out among them, and those of the
    process are meanwhile as many as each has. What one of them raises is raised, after those that have begun. A second caller
    in the meantime has its batches one after the other."""
    workers = min(workers, len(batches))
    if workers < 2 or not _SHARED_OUT.acquire(blocking=False):
        return [work(batch) for batch in batches]
    threads = torch.get_num_threads()
    each = max(1, threads // workers)
    try:
        with ThreadPoolExecutor(workers, "tfkit-search", torch.set_num_threads, (each,)) as pool:
            futures = [pool.submit(work, batch) for batch in batches]
            try:
                return [future.result() for future in futures]
            except BaseException:
                pool.shutdown(wait=False, cancel_futures=True)
                raise
    finally:
        torch.set_num_threads(threads)
        _SHARED_OUT.release()


def workers_for(model: Model, workers: int) -> int:
    """1 where batches have to follow one another: on other devices, in training mode, whose dropout draws from one generator,
    under autocast and modes of torch's, which are those of one thread, and with a backend that is not for several threads."""
    apart = (
        next(model.parameters()).device.type == "cpu"
        and not model.training
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._len_torch_function_stack()
        and not model.not_thread_safe("cpu")
    )
    return workers if apart else 1
