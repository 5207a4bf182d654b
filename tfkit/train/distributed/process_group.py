"""The processes that train one model together, as `torchrun` starts them. One alone needs nothing of this.

All of them run the same program on different rows, and every decision is made of numbers that all of them have: what only one
can know (a signal, the time, a full disk) is told to the others before anybody acts on it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from typing import Any, TypeVar

import torch

from ...errors import Diagnostic, InputError, TfkitError, TrainingError

Found = TypeVar("Found")
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")
"""What torchrun sets."""
PATIENCE = timedelta(days=2)
"""How long the others wait while the first prepares the data."""
LOST = re.compile(r"\b(gloo|nccl|peer|socket)\b|connection (closed|reset|refused)|broken pipe|timed out", re.IGNORECASE)
"""How torch's messages speak of a process that no longer answers."""


class ProcessLost(TrainingError):
    """Another process of the run does not answer any more."""


class ProcessGroup:
    """`rank` counts from 0 to `count` - 1; the one with rank 0 writes and speaks for all. Every method is called by all of
    them, in the same order; with one process it costs nothing."""

    def __init__(self, rank: int = 0, count: int = 1, group: Any = None) -> None:
        self.rank, self.count, self.group = rank, count, group

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sums(self, *values: float) -> list[float]:
        """The sum of each number over all processes, in float64."""
        if self.count == 1:
            return list(values)
        whole = torch.tensor(values, dtype=torch.float64)
        torch.distributed.all_reduce(whole, group=self.group)
        return whole.tolist()

    def first(self, make: Callable[[], Found], patiently: bool = False) -> Found:
        """What the first process makes, for all; where it raises a TfkitError, all do. `patiently` waits for days."""
        if self.count == 1:
            return make()
        made: list[Any] = [None, None]
        if self.is_first:
            try:
                made[0] = make()
            except TfkitError as error:
                made[1] = error
        if patiently:
            torch.distributed.monitored_barrier(group=self.group, timeout=PATIENCE)
        torch.distributed.broadcast_object_list(made, src=0, group=self.group)
        if made[1] is not None:
            made[1].reported_by_other_rank = not self.is_first
            raise made[1]
        return made[0]  # type: ignore[no-any-return]

    def each(self, make: Callable[[], Found]) -> Found:
        """What every process makes for itself, without the others; where it raises a TfkitError in some, all raise that of the
        first of these."""
        if self.count == 1:
            return make()
        made: Any = None
        failed: TfkitError | None = None
        try:
            made = make()
        except TfkitError as reason:
            failed = reason
        for rank, error in enumerate(self.gathered(failed)):
            if error is not None:
                error.reported_by_other_rank = rank != self.rank
                raise error
        return made  # type: ignore[no-any-return]

    def gathered(self, mine: Found) -> list[Found]:
        """What every process has, by rank."""
        if self.count == 1:
            return [mine]
        found: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(found, mine, group=self.group)
        return found

    @contextmanager
    def reporting_once(self) -> Iterator[None]:
        """A connection that broke is told as what it means: another process is gone. Raises ProcessLost."""
        try:
            yield
        except RuntimeError as reason:
            if self.count == 1 or isinstance(reason, TfkitError) or not LOST.search(str(reason)):
                raise
            message = f"process {self.rank} of {self.count} lost another one, which was killed, failed, or does not answer"
            fix = "what was printed before tells why, where it could; start all of them again with --resume"
            raise ProcessLost(Diagnostic("TFK119", message, fix)) from reason


def started_rank() -> int:
    """The rank that torchrun gave to this process, 0 without it."""
    return int(os.environ["RANK"]) if all(name in os.environ for name in VARIABLES) else 0


@contextmanager
def joined(device: str | torch.device) -> Iterator[tuple[ProcessGroup, torch.device]]:
    """The processes that torchrun started together with this one, and the device of this one. Raises InputError for a CUDA
    device that all of them would share."""
    place = torch.device(device)
    if not all(name in os.environ for name in VARIABLES) or int(os.environ["WORLD_SIZE"]) == 1:
        yield ProcessGroup(), place
        return
    import torch.distributed as dist

    from .gloo import of_one_thread

    if place.type == "cuda":
        here, there = int(os.environ["LOCAL_RANK"]), torch.cuda.device_count()
        if place.index is not None or here >= there:
            message = (
                f"{place} cannot be the device of every process, and process {here} on this machine has {there} to choose from"
            )
            raise InputError(
                Diagnostic("TFK118", message, "write `--device cuda`, and start one process for every CUDA device")
            )
        place = torch.device("cuda", here)
        torch.cuda.set_device(place)
    own = not dist.is_initialized()
    with of_one_thread():
        if own:
            dist.init_process_group("cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo")
        # What is said about rows and files goes over the processors, whatever computes.
        group = dist.new_group(backend="gloo")
    try:
        yield ProcessGroup(dist.get_rank(), dist.get_world_size(), group), place
    except ProcessLost:  # which would be waited for
        raise
    except (TfkitError, KeyboardInterrupt):
        if own:
            dist.destroy_process_group()
        raise
    if own:
        # What a group's thread has done last it puts away after it is told as done; where Python ends just then, the process
        # dies. Behind a barrier, of which there is nothing to put away, all else is. One that failed at the end is not there.
        with suppress(RuntimeError):
            group.barrier().wait()
        dist.destroy_process_group()
