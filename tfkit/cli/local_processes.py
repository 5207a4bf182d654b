"""Processes on this machine that train together, without torchrun."""

from __future__ import annotations

import os
import signal
import socket
import time

PATIENCE = 30.0
"""Seconds in which the other processes may end by themselves after one has failed."""


def start_processes(count: int) -> int | None:
    """Become `count` processes with the environment that torchrun would give them. They share the processors: each gets its
    part of the threads, unless OMP_NUM_THREADS is set.

    Call it before torch is imported: a copy of a process has no threads.

    Args:
        count: The number of processes.

    Returns:
        None in each of the processes, which go on from here. In the process that called, which waits for them, the exit code:
        0, or that of the first one that failed.
    """
    threads = max(1, len(os.sched_getaffinity(0)) // count) if hasattr(os, "sched_getaffinity") else 1
    shared = {"WORLD_SIZE": str(count), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_free_port())}
    shared |= {"OMP_NUM_THREADS": os.environ.get("OMP_NUM_THREADS", str(threads))}
    children: list[int] = []
    # A signal that comes before the handlers are set would end this process alone and leave its children running.
    unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})
    for rank in range(count):
        process = os.fork()
        if process == 0:
            os.environ.update(shared, RANK=str(rank), LOCAL_RANK=str(rank))
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
            return None
        children.append(process)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal sends Ctrl-C to all of them
    signal.signal(signal.SIGTERM, lambda *_: _send(children, signal.SIGTERM))
    signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)
    return _wait(set(children))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _wait(running: set[int]) -> int:
    """Wait until all have ended. After a failure the others end by themselves, because they miss it, or are ended."""
    first, failed_at, asked = 0, 0.0, False
    while running:
        process, status = os.waitpid(-1, os.WNOHANG)
        if process == 0:
            if first and time.monotonic() - failed_at > PATIENCE:
                _send(list(running), signal.SIGKILL if asked else signal.SIGTERM)
                asked, failed_at = True, time.monotonic()
            time.sleep(0.05)
            continue
        running.discard(process)
        code = os.waitstatus_to_exitcode(status)
        if code and not first:
            first, failed_at = code if code > 0 else 128 - code, time.monotonic()
    return first


def _send(processes: list[int], what: signal.Signals) -> None:
    for process in processes:
        try:
            os.kill(process, what)
        except ProcessLookupError:
            continue
