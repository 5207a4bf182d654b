"""Searches several batches in parallel on a CPU, each in a thread.

A decoding step runs about a hundred small operations. Threads that share each operation synchronise a hundred times per step
and wait for the slowest. Threads that search different batches share only Python's lock, which torch releases while it
computes. `bench/translate.py --threads 2` compares both, with and without `--workers 2`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

from ..nn.model import Model

Batch = TypeVar("Batch")
Result = TypeVar("Result")
_THREAD_COUNT = threading.Lock()
"""The lock of the caller that changes torch's thread count, a setting of the whole process."""


def map_in_threads(work: Callable[[Batch], Result], batches: Sequence[Batch], workers: int) -> list[Result]:
    """Call `work` for every batch in `workers` threads; returns the results in the order of the batches.

    torch's threads are divided among the workers: until the end, torch's thread count is that of one worker. An exception of
    one call is raised after the calls that have started. While another caller uses this function, batches run one at a time.
    """
    workers = min(workers, len(batches))
    if workers < 2 or not _THREAD_COUNT.acquire(blocking=False):
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
        _THREAD_COUNT.release()


def workers_for(model: Model, workers: int) -> int:
    """The number of batches that may run in parallel: `workers` on a CPU.

    It is 1 in training mode (dropout draws from one generator), under autocast and torch modes (they apply to one thread only),
    and with a backend that is not thread-safe.
    """
    parallel = (
        model.device.type == "cpu"
        and not model.training
        and not torch.is_autocast_enabled("cpu")
        and not torch._C._len_torch_dispatch_stack()
        and not torch._C._len_torch_function_stack()
        and not model.not_thread_safe("cpu")
    )
    return workers if parallel else 1
