"""Atomic writes of directories: written as a draft in the same parent directory, then renamed."""

from __future__ import annotations

import os
from collections.abc import Collection
from itertools import takewhile
from pathlib import Path

from .listing import check_removable, remove_written
from .write import draft_prefix


def make_folders(directory: Path) -> None:
    """Create a directory and those above it, if they are missing. Raises OSError.

    `Path.mkdir` calls itself for each of them, and fails beyond a thousand.
    """
    missing = takewhile(lambda folder: not folder.exists(), (directory, *directory.parents))
    for folder in reversed([*missing]):
        folder.mkdir(exist_ok=True)
    directory.mkdir(exist_ok=True)  # fails for a file


def make_draft(directory: Path) -> Path:
    """Create an empty directory in the parent of another one, for `replace_directory`. Raises OSError."""
    import tempfile  # it imports random and hashlib, which nothing else here needs

    place = settled(directory)
    return Path(tempfile.mkdtemp(prefix=draft_prefix(place), suffix=".draft", dir=place.parent))


def settled(directory: Path) -> Path:
    """The directory by a path that holds while it is renamed: `m/../m` leads through it, as `../m` does inside of it. A link of
    this name stays one. Raises OSError."""
    if directory.name in ("", ".."):
        return directory.resolve(strict=True)
    return directory.parent.resolve(strict=True) / directory.name


def replace_directory(draft: Path, directory: Path, names: Collection[str]) -> None:
    """Give a finished draft the name of a directory, after its content reached the disk.

    Args:
        draft: From `make_draft`.
        directory: The name. An existing directory is removed once the draft has its name.
        names: The files that the existing directory may hold. Others are not removed.

    Raises:
        OSError: Nothing was changed.
        StoreError: As `check_removable`.
    """
    import tempfile

    directory = settled(directory)
    for path in [*draft.rglob("*"), draft]:
        sync(path)
    if not os.path.lexists(directory):
        draft.rename(directory)
    else:
        check_removable(directory, names)
        old = Path(tempfile.mkdtemp(prefix=draft_prefix(directory), suffix=".old", dir=directory.parent))
        previous = old / directory.name
        try:
            directory.rename(previous)
            draft.rename(directory)
        finally:  # also when interrupted: the previous directory stays until the new one has its name
            if not directory.exists():
                previous.rename(directory)
            if previous.exists():
                remove_written(previous, names)
            old.rmdir()
    sync(directory.parent)


def sync(path: Path) -> None:
    """Write a file or a directory through to the disk. Raises OSError."""
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
