"""The processes that train one model together, as `torchrun` starts them.

All run the same program on different batches. Values that only one process has (a signal, the time, a full disk) are sent to
the others before any process acts on them, so that all take the same decision.
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

Result = TypeVar("Result")
VARIABLES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_ADDR")
"""The environment variables that torchrun sets."""
ALONE = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0"}
"""Their values in a process without others."""
LONG_TIMEOUT = timedelta(days=2)
"""The time limit for the other processes while the first one prepares the data."""
LOST = re.compile(r"\b(gloo|nccl|peer|socket)\b|connection (closed|reset|refused)|broken pipe|timed out", re.IGNORECASE)
"""The words of torch's error messages if another process does not answer."""


class ProcessLost(TrainingError):
    """Another process of the run no longer answers."""


class ProcessGroup:
    """The processes of a run. All processes call every method, in the same order. A single process does not communicate.

    Attributes:
        rank: The number of this process, from 0. Process 0 writes the files of the run.
        count: The number of processes.
        group: torch's process group; None for one process.
    """

    def __init__(self, rank: int = 0, count: int = 1, group: Any = None) -> None:
        self.rank, self.count, self.group = rank, count, group

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def sum(self, *values: float) -> list[float]:
        """The sum of each number over all processes, in float64."""
        if self.count == 1:
            return list(values)
        whole = torch.tensor(values, dtype=torch.float64, device="cpu")
        torch.distributed.all_reduce(whole, group=self.group)
        return whole.tolist()

    def run_on_first(self, make: Callable[[], Result], *, long: bool = False) -> Result:
        """Call a function in the first process, and send its result, or the TfkitError that it raises, to all. With `long` it
        may take days."""
        if self.count == 1:
            return make()
        result: list[Any] = [None, None]  # the value, the error
        if self.is_first:
            try:
                result[0] = make()
            except TfkitError as error:
                result[1] = error
        if long:
            torch.distributed.monitored_barrier(group=self.group, timeout=LONG_TIMEOUT)
        torch.distributed.broadcast_object_list(result, src=0, group=self.group)
        value, failure = result
        if failure is not None:
            failure.reported_by_other_rank = not self.is_first
            raise failure
        return value  # type: ignore[no-any-return]

    def run_on_all(self, make: Callable[[], Result]) -> Result:
        """Call a function without collectives in every process; returns the result of this one. If some raise a TfkitError, all
        raise that of the lowest rank."""
        if self.count == 1:
            return make()
        value: Any = None
        failed: TfkitError | None = None
        try:
            value = make()
        except TfkitError as reason:
            failed = reason
        for rank, error in enumerate(self.all_gather(failed)):
            if error is not None:
                error.reported_by_other_rank = rank != self.rank
                raise error
        return value  # type: ignore[no-any-return]

    def all_gather(self, local: Result) -> list[Result]:
        """The objects of all processes, by rank."""
        if self.count == 1:
            return [local]
        gathered: list[Any] = [None] * self.count
        torch.distributed.all_gather_object(gathered, local, group=self.group)
        return gathered

    @contextmanager
    def reporting_lost_process(self) -> Iterator[None]:
        """A context that raises ProcessLost if torch reports a broken connection."""
        try:
            yield
        except RuntimeError as reason:
            if self.count == 1 or isinstance(reason, TfkitError) or not LOST.search(str(reason)):
                raise
            message = f"process {self.rank} of {self.count} lost another process, which was killed, failed, or does not answer"
            fix = "see the output of that process; start all of them again with --resume"
            raise ProcessLost(Diagnostic("TFK119", message, fix)) from reason


def started_rank() -> int:
    """The rank that torchrun gave this process; 0 without torchrun."""
    return int(os.environ["RANK"]) if all(name in os.environ for name in VARIABLES) else 0


def _started_with_others() -> bool:
    """Whether torchrun started this process beside others. Raises InputError if that is not clear."""
    missing = [name for name in VARIABLES if name not in os.environ]
    others = {name: os.environ.get(name, alone) for name, alone in ALONE.items()}
    if missing and others != ALONE:
        told = ", ".join(f"{name}={value}" for name, value in others.items() if value != ALONE[name])
        message = f"{told} names other processes of the run, and {', '.join(missing)} is not set"
        raise InputError(Diagnostic("TFK118", message, "start the processes with torchrun, or unset these variables"))
    return not missing and int(os.environ["WORLD_SIZE"]) > 1


@contextmanager
def join_processes(device: str | torch.device) -> Iterator[tuple[ProcessGroup, torch.device]]:
    """The processes that torchrun started, and the device of this one. Raises InputError for a CUDA device that all of them
    would share, and if only some of torchrun's variables are set."""
    place = torch.device(device)
    if not _started_with_others():
        yield ProcessGroup(), place
        return
    import torch.distributed as dist

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
    initialises = not dist.is_initialized()
    with single_threaded_gloo():
        if initialises:
            dist.init_process_group("cpu:gloo,cuda:nccl" if place.type == "cuda" else "gloo")
        # Objects and counts are sent with gloo on every device.
        group = dist.new_group(backend="gloo")
    try:
        yield ProcessGroup(dist.get_rank(), dist.get_world_size(), group), place
    except ProcessLost:  # destroying the group would wait for it
        raise
    except (TfkitError, KeyboardInterrupt):
        if initialises:
            dist.destroy_process_group()
        raise
    if initialises:
        # A gloo worker cleans up an operation after its completion is visible; a process that exits before that crashes. A
        # barrier needs no cleanup, and after it all earlier operations are cleaned up. A process that failed does not join it.
        with suppress(RuntimeError):
            group.barrier().wait()
        dist.destroy_process_group()


@contextmanager
def single_threaded_gloo() -> Iterator[None]:
    """A context in which new gloo groups have one thread. torch does not pass group options to gloo, so its gloo class is
    replaced inside the context.

    torch gives each gloo group two threads, and both write the name of their last operation without a lock
    (`ProcessGroupGloo::runLoop`, torch 2.11 to 2.13). A name of more than 15 characters, such as the ALLGATHER_COALESCED of
    FSDP2, is allocated on the heap. If both threads write at once, it is freed twice, and the process crashes later. A single
    worker cannot race. All processes start the same collectives in the same order, so no collective waits for a later one.
    """
    from torch.distributed import distributed_c10d  # a torch without distributed training has none

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
