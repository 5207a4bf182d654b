"""Rivals in processes of their own, as their users run them: what one does to the allocator and the threads of its process, the
others do not feel. They still take turns, so that a noisy machine is noisy for all.
"""

from __future__ import annotations

import multiprocessing
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import cache
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerContext
from typing import Any

Make = Callable[..., Callable[[], Any]]
"""Makes a rival, in its own process, from arguments that can be pickled."""
CLOCKS = {"wall": time.perf_counter, "processor time": time.process_time}


@cache
def new_processes() -> ForkServerContext:
    """Makes processes that are forked from one that has only imported what every rival needs."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["torch", "tfkit.builder", "tfkit.generate", "tfkit.serve.tasks"])
    return context


class Apart:
    """A rival that `make(*arguments)` makes in a new process; a function of a module, as `make` is found by its name there."""

    def __init__(self, make: Make, *arguments: Any) -> None:
        context = new_processes()
        self.connection, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, make, arguments), daemon=True)
        self.process.start()
        theirs.close()

    def run(self, clock: str) -> tuple[float, Any]:
        """The seconds of one call by a clock, and what the call gave. Raises RuntimeError where the process has failed."""
        try:
            self.connection.send(clock)
            seconds, given = self.connection.recv()
        except (EOFError, OSError):
            self.process.join()
            raise RuntimeError(f"a rival's process ended with {self.process.exitcode}; what it said is above") from None
        return seconds, given

    def __enter__(self) -> Apart:
        return self

    def __exit__(self, *error: object) -> None:
        self.connection.close()
        self.process.join()


def _serve(connection: Connection, make: Make, arguments: Sequence[Any]) -> None:
    candidate = make(*arguments)
    while True:
        try:
            clock = CLOCKS[connection.recv()]
        except EOFError:
            return
        start = clock()
        given = candidate()
        connection.send((clock() - start, given))


def timed_apart(
    candidates: dict[str, tuple[Make, Sequence[Any]]], rounds: int, clock: str
) -> tuple[dict[str, list[float]], dict[str, Any]]:
    """Seconds of `rounds` calls of each rival, after one that warms up, and what that one gave."""
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    with ExitStack() as stack:
        running = {name: stack.enter_context(Apart(make, *given)) for name, (make, given) in candidates.items()}
        first = {name: candidate.run(clock)[1] for name, candidate in running.items()}
        for _ in range(rounds):
            for name, candidate in running.items():
                seconds[name].append(candidate.run(clock)[0])
    return seconds, first
