"""The files of a run: their names, and how they are listed and removed.

recipe.yaml              the recipe with all defaults; written last, so that a directory without it holds no run
spec.yaml                the spec, with the sizes of the vocabularies
source.json target.json  the tokenisers; one file for a joint vocabulary: tokeniser.json
digests.json             digests of the inputs of the run
data/                    the corpora of ids
checkpoints/step-N       the state to resume from
models/step-N            the best models by validation, as `tfkit build` saves them, with their tokenisers; or adapters
models/best.json         the name of the best of them
tensorboard/             events for TensorBoard
log.jsonl                every step and validation, one JSON object per line
curve.html               the training curve
run.lock                 locked by the process that works on the run, which run.lock.json names
unfinished-preparation   exists until recipe.yaml does

A run has only regular files and directories. No link is followed, and only files with known names are removed.
"""

from __future__ import annotations

import os
import re
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Annotated

from filelock import FileLock, Timeout
from pydantic import Field

from ..data import FACTS, IMAGES, LABELS, PAIR_LABELS, SPANS, TOKENISER_FILES, TRAIN, VALIDATION
from ..errors import Diagnostic, InputError, StoreError
from ..files import FileModel, read_model, write_whole
from ..io.alignment_site import ALIGNMENT
from ..io.layout import ADAPTER, ADAPTER_CONFIG, PLAN, VERSIONS, WEIGHTS

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
        _separate_lock(directory / LOCK)
        lock.acquire()
    except Timeout:
        message = f"{directory} is in use: {_holder_text(place)} works on it"
        raise InputError(Diagnostic("TFK121", message, "wait until it has ended, end it, or name another directory")) from None
    except OSError as reason:
        message = f"{directory / LOCK} could not be written: {reason.strerror}"
        raise StoreError(
            Diagnostic("TFK081", message, "a run is locked in its own directory, which must be writable")
        ) from None
    holder = Holder(process=os.getpid(), host=socket.gethostname())
    try:
        write_whole(place, holder.model_dump_json() + "\n")
        yield
    finally:
        if _holder(place) == holder:
            with suppress(OSError):
                place.unlink()
        lock.release()


def _separate_lock(path: Path) -> None:
    """Remove a lock that has other names, as a copy of a run by hard links has: filelock before 4.2 empties the file. Raises
    Timeout where a process holds it, OSError, and StoreError for a link."""
    try:
        status = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISREG(status.st_mode):
        raise StoreError(Diagnostic("TFK081", f"{path} is no regular file", "remove it; a run makes its lock itself"))
    if status.st_nlink == 1:
        return
    import fcntl  # where hard links are, there it is

    number = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.unlink(path)
    except BlockingIOError:
        raise Timeout(str(path)) from None
    finally:
        os.close(number)


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


RECIPE, SPEC, DIGESTS, LOG, CURVE = "recipe.yaml", "spec.yaml", "digests.json", "log.jsonl", "curve.html"
DATA, CHECKPOINTS, MODELS, EVENTS = "data", "checkpoints", "models", "tensorboard"
FOLDERS = (DATA, CHECKPOINTS, MODELS, EVENTS)
UNFINISHED = "unfinished-preparation"
PREPARED = (SPEC, DIGESTS, IMAGES, *TOKENISER_FILES)
"""The files that the preparation of a run writes, without those in `data`."""
CORPORA = (TRAIN, VALIDATION, FACTS, *(str(Path(name).with_suffix(".draft")) for name in (TRAIN, VALIDATION)))
FILES = (*PREPARED, RECIPE, LOG, CURVE, LOCK, HOLDER, UNFINISHED)
MAX_ENTRIES = 10_000
"""The most entries of a folder of a run; a recipe keeps at most half as many checkpoints."""
SHARDS = "shards"
SAVED = (
    *("model.safetensors", "optimiser.safetensors", "average.safetensors", "state.json", "manifest.json"),
    *(SPEC, WEIGHTS, ADAPTER, ADAPTER_CONFIG, PLAN, VERSIONS, LABELS, PAIR_LABELS, SPANS, IMAGES, ALIGNMENT, *TOKENISER_FILES),
)
"""The files of a checkpoint or a saved model. A checkpoint may also have a folder of shards."""
STEP_NAME = re.compile(r"step-(0|[1-9][0-9]{0,14})")
_NOT_FINITE = re.compile(r"not-finite-step-[0-9]+\.safetensors")
_FILE_DRAFT = re.compile(r"\.(.+)\.[a-z0-9_]{8}", re.ASCII)
"""A draft of `write_whole`, or another file of Python's `tempfile`."""


def is_file_of_run(name: str) -> bool:
    """Whether a run may have a file of this name."""
    return name in FILES or _NOT_FINITE.fullmatch(name) is not None or is_draft(name, FILES)


def is_draft(name: str, names: tuple[str, ...]) -> bool:
    """Whether this is the name of a draft of one of the files."""
    match = _FILE_DRAFT.fullmatch(name)
    return match is not None and match[1] in names


def is_own(path: Path, names: tuple[str, ...]) -> bool:
    """Whether a path is a regular file with one of the names, or a draft of it, or no longer exists."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return True
    return (path.name in names or is_draft(path.name, names)) and stat.S_ISREG(mode)


def is_folder(path: Path) -> bool:
    """Whether this is a directory, and no link to one."""
    return path.is_dir() and not path.is_symlink()


def entries(folder: Path) -> list[Path]:
    """The entries of a folder; none if it cannot be read."""
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def saved_steps(folder: Path) -> dict[int, Path]:
    """The directories `step-N` in a folder by N, ascending."""
    try:
        with os.scandir(folder) as listed:
            names = [entry.name for entry in listed if STEP_NAME.fullmatch(entry.name) and entry.is_dir(follow_symlinks=False)]
    except OSError:
        return {}
    return {step: folder / f"step-{step}" for step in sorted(int(name.removeprefix("step-")) for name in names)}


def remove_saved(directory: Path) -> None:
    """Remove the files of a checkpoint or a saved model, and the directory if it is then empty."""
    if directory.is_symlink():
        return
    if not (directory / SHARDS).is_symlink():
        for path in entries(directory / SHARDS):
            if path.suffix == ".safetensors":
                unlink(path)
        rmdir(directory / SHARDS)
    remove_files(directory, SAVED)
    rmdir(directory)


def remove_files(folder: Path, names: tuple[str, ...]) -> None:
    """Remove the regular files of these names, and their drafts."""
    for path in entries(folder):
        if is_own(path, names):
            unlink(path)


def unlink(path: Path) -> None:
    """Remove a file if possible."""
    with suppress(OSError):
        path.unlink()


def rmdir(path: Path) -> None:
    """Remove a directory if it is empty."""
    with suppress(OSError):
        path.rmdir()
