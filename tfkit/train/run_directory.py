"""The directory of a run: created for a new run, opened for a resumed one, and locked while the run works."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import islice
from pathlib import Path

from ..errors import Diagnostic, InputError, StoreError
from ..files import make_folders, write_whole
from .callbacks import CallbackList
from .run_files import (
    CHECKPOINTS,
    CORPORA,
    DATA,
    FOLDERS,
    HOLDER,
    LOCK,
    MAX_ENTRIES,
    MODELS,
    PREPARED,
    RECIPE,
    UNFINISHED,
    entries,
    is_draft,
    is_file_of_run,
    is_folder,
    is_own,
    locked,
    remove_files,
    remove_saved,
    rmdir,
    unlink,
)

_NOTE = f"`tfkit train` did not finish the preparation of this run. `tfkit train ... -o` starts over; then {RECIPE} appears.\n"
_DIRECTORY_DRAFT = re.compile(r"\.(step-[0-9]+)\.\w+\.(draft|old)", re.ASCII)
_DEEPEST = 4
"""How deep folders of a run lie that tfkit reads: `checkpoints/.step-1.x.old/step-1/shards`."""
_MAX_NAMED = 3
"""The largest number of files that a message names."""


def own_place(directory: str | Path) -> Path:
    """The directory of a run as the user names it; the target of a link."""
    path = Path(directory)
    try:
        return path.resolve(strict=True) if path.is_symlink() else path
    except (OSError, RuntimeError):  # RuntimeError: a link to itself, before Python 3.13
        raise StoreError(Diagnostic("TFK080", f"{path} is a broken link", "name a directory")) from None


def identity(directory: Path) -> tuple[int, int] | None:
    """Device and inode of a directory; None if it does not exist."""
    try:
        status = directory.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def check_new(directory: Path) -> None:
    """Raises StoreError for a directory that holds more than an unfinished preparation."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise StoreError(Diagnostic("TFK080", f"{directory} exists and is no directory", "name another directory"))
    others = _foreign(directory)
    if (directory / RECIPE).is_file():  # checked last: another process may just have finished its preparation
        raise StoreError(Diagnostic("TFK080", f"{directory} exists and holds a run", "`--resume` continues it"))
    if others:
        listed = ", ".join(others[:_MAX_NAMED]) + (f" and {len(others) - _MAX_NAMED} more" if len(others) > _MAX_NAMED else "")
        raise StoreError(Diagnostic("TFK080", f"{directory} exists and is not empty: {listed}", "name another directory"))


def is_unfinished(directory: Path) -> bool:
    """Whether a directory holds an unfinished preparation."""
    return (directory / UNFINISHED).is_file() and not os.path.lexists(directory / RECIPE)


@contextmanager
def new_run(directory: Path) -> Iterator[None]:
    """Create and lock the directory of a new run; remove an unfinished preparation from it. Raises StoreError if it cannot be
    written, or is not empty, and InputError if another process has locked it.

    If the context ends before the recipe is written, all written files are removed, and the directory if it was created.
    """
    check_new(directory)
    try:
        make_folders(directory.parent)
        created = True
        try:
            directory.mkdir()
        except FileExistsError:
            created = False
    except OSError as reason:
        raise StoreError(Diagnostic("TFK081", f"{directory} cannot be created: {reason.strerror}")) from None
    with locked(directory):
        check_new(directory)
        identity_before = identity(directory)
        try:
            _remove_preparation(directory)
            write_whole(directory / UNFINISHED, _NOTE)
            yield
        finally:
            if identity(directory) == identity_before and not os.path.lexists(directory / RECIPE):
                _remove_preparation(directory)
                for name in (UNFINISHED, HOLDER, LOCK):
                    unlink(directory / name)
                if created:
                    rmdir(directory)


def end_preparation(directory: Path) -> None:
    """Remove the note that the preparation is unfinished, once the recipe is written."""
    unlink(directory / UNFINISHED)


@contextmanager
def old_run(directory: Path) -> Iterator[None]:
    """Lock the directory of a run to resume. Raises InputError if there is no run or another process has locked it, and
    StoreError for links in it."""
    if not (directory / RECIPE).is_file():
        if is_unfinished(directory):
            message = f"the preparation of {directory} was interrupted before its first step: there is no {RECIPE}"
            raise InputError(Diagnostic("TFK111", message, f"start over with `tfkit train RECIPE -o {directory}`"))
        message = f"{directory} holds no run to resume: there is no {RECIPE}"
        raise InputError(Diagnostic("TFK111", message, "name the directory that `tfkit train -o` wrote"))
    check_inside(directory)
    with locked(directory):
        end_preparation(directory)  # the process may have been killed just after it wrote the recipe
        _sweep(directory)
        yield


def check_inside(directory: Path) -> None:
    """Raises StoreError if an entry that tfkit reads or writes in a run is a link, a special file, or a file in place of a
    directory, or if a folder has very many entries."""
    if diagnostics := list(islice(_misplaced(directory, 0), _MAX_NAMED)):
        raise StoreError(diagnostics)


def _misplaced(folder: Path, depth: int) -> Iterator[Diagnostic]:
    """What is wrong with the entries of a folder, so many levels below that of the run, and with those in it."""
    try:
        with os.scandir(folder) as scanned:
            known = (entry for entry in scanned if depth or entry.name in FOLDERS or is_file_of_run(entry.name))
            listed = list(islice(known, MAX_ENTRIES + 1))
    except OSError:
        return  # removed by another process
    if len(listed) > MAX_ENTRIES:
        fix = "remove what tfkit did not write there"
        yield Diagnostic("TFK082", f"{folder} has more than {MAX_ENTRIES:,} entries, the limit of a folder of a run", fix)
        return
    for entry in listed:
        path, is_directory = folder / entry.name, entry.is_dir(follow_symlinks=False)
        expected = "a directory" if (is_directory if depth else entry.name in FOLDERS) else "a regular file"
        if entry.is_symlink():
            yield Diagnostic("TFK082", f"{path} is a link, and no link is followed inside a run", "replace it with its target")
        elif not (is_directory if expected == "a directory" else entry.is_file(follow_symlinks=False)):
            yield Diagnostic("TFK082", f"{path} is not {expected}", "restore the original, or remove it")
        elif is_directory and depth < _DEEPEST:
            yield from _misplaced(path, depth + 1)


def _foreign(directory: Path) -> list[str]:
    """The entries of a directory that do not belong to a preparation. Another process may remove entries meanwhile."""
    listed = entries(directory)
    unfinished = (directory / UNFINISHED).is_file()
    names = (*(PREPARED if unfinished else ()), RECIPE, LOCK, HOLDER, UNFINISHED)
    foreign = []
    for path in listed:
        if path.name == DATA and unfinished and is_folder(path):
            foreign += [f"{DATA}/{child.name}" for child in entries(path) if not is_own(child, CORPORA)]
        elif not is_own(path, names):
            foreign.append(path.name)
    return sorted(foreign)


def _remove_preparation(directory: Path) -> None:
    """Remove the files of a preparation, except the note that it is unfinished."""
    if not (directory / DATA).is_symlink():
        remove_files(directory / DATA, CORPORA)
        rmdir(directory / DATA)
    remove_files(directory, PREPARED)
    for path in entries(directory):
        if is_draft(path.name, (RECIPE, HOLDER, UNFINISHED)):
            unlink(path)


def _sweep(directory: Path) -> None:
    """Remove the drafts of a process that was killed while writing, and restore directories that it was replacing."""
    for folder in (directory / CHECKPOINTS, directory / MODELS):
        drafts = [
            (path, match) for path in entries(folder) if (match := _DIRECTORY_DRAFT.fullmatch(path.name)) and is_folder(path)
        ]
        for path, match in drafts:
            previous = path / match[1]
            if match[2] == "old" and is_folder(previous):
                if os.path.lexists(folder / match[1]):
                    remove_saved(previous)
                else:
                    with suppress(OSError):
                        previous.rename(folder / match[1])
            remove_saved(path)


class RunOutput:
    """The state that all components which write share.

    Attributes:
        directory: The directory of the run.
        callbacks: Receive the errors of failed writes.
        unsaved: The error of the last failed checkpoint or model; None after a checkpoint was written.
        removed: The error if the directory was removed or replaced. The run then stops.
    """

    def __init__(self, directory: Path, callbacks: CallbackList) -> None:
        self.directory, self.callbacks = directory, callbacks
        self.unsaved: StoreError | None = None
        self.removed: StoreError | None = None
        self._identity = identity(directory)

    def check(self) -> None:
        """Raises StoreError if the directory was removed or replaced since the start of the run."""
        if identity(self.directory) != self._identity:
            message = f"{self.directory} was removed or replaced while the run was working in it"
            self.removed = StoreError(Diagnostic("TFK081", message, "the run stops; nothing was written in another place"))
            raise self.removed

    def failed(self, reason: StoreError) -> None:
        """Record that a checkpoint or a model could not be written. Training continues, and the next one is tried."""
        self.unsaved = reason
        if self.removed is None:  # otherwise it is reported when the run stops
            self.callbacks.notify(lambda callback: callback.on_warning(reason.diagnostics))
