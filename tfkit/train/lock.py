"""The lock of a run: only one process, or one group of processes, works on it at a time."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

from filelock import FileLock, Timeout
from pydantic import Field

from ..errors import Diagnostic, InputError, StoreError
from ..files import FileModel, read_model, write_whole

LOCK, HOLDER = "run.lock", "run.lock.json"


class Holder(FileModel):
    """The process that has locked a run."""

    process: Annotated[int, Field(ge=1)]
    host: Annotated[str, Field(max_length=300)]


@contextmanager
def locked(directory: Path) -> Iterator[None]:
    """Lock the directory of a run. The operating system releases the lock when the process ends.

    Raises InputError if another process has locked it, StoreError if it cannot be written.
    """
    lock, place = FileLock(directory / LOCK, timeout=0), directory / HOLDER
    try:
        lock.acquire()
    except Timeout:
        message = f"{directory} is in use: {_holder_text(place)} works on it"
        raise InputError(Diagnostic("TFK121", message, "wait until it has ended, end it, or name another directory")) from None
    except OSError as reason:
        message = f"{directory / LOCK} could not be written: {reason.strerror}"
        raise StoreError(
            Diagnostic("TFK081", message, "a run is locked in its own directory, which must be writable")
        ) from None
    own = Holder(process=os.getpid(), host=socket.gethostname())
    try:
        write_whole(place, own.model_dump_json() + "\n")
        yield
    finally:
        if _holder(place) == own:
            with suppress(OSError):
                place.unlink()
        lock.release()


def _holder_text(place: Path) -> str:
    for _ in range(50):  # it writes its name after it has the lock
        if holder := _holder(place):
            return f"process {holder.process} on {holder.host}"
        time.sleep(0.02)
    return "another process"


def _holder(place: Path) -> Holder | None:
    try:
        return read_model(place, Holder, 10_000)
    except StoreError:
        return None
