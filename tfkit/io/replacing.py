"""Checks that a saved model replaces only files that tfkit wrote."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import Diagnostic, StoreError
from ..files import FileRecord, check_removable, file_record, read_model
from .layout import PLAN, SPEC, VERSIONS, WEIGHTS, Versions


def check_place(directory: Path, overwrite: bool) -> None:
    """Raises StoreError (TFK080) if the directory exists and may not be replaced."""
    if os.path.lexists(directory) and written_names(directory) and not overwrite:
        raise StoreError(
            Diagnostic("TFK080", f"{directory} exists already", "choose another directory, or pass overwrite (--force)")
        )


def written_names(directory: Path) -> set[str]:
    """The names of the files of a saved model, none for an empty directory.

    Raises:
        StoreError: TFK080 for a link, and for a directory with files that tfkit did not write there.
    """
    try:
        if directory.is_symlink():
            raise OSError(None, "it is a link")
        if not any(directory.iterdir()):
            return set()
        files = read_model(directory / VERSIONS, Versions).files
    except (OSError, StoreError) as reason:
        why = reason.strerror if isinstance(reason, OSError) else reason.diagnostics[0].message
        message = f"{directory} exists and is no saved model, so it is not replaced: {why}"
        raise StoreError(Diagnostic("TFK080", message, "choose another directory")) from None
    # Another program may have written the listing. Apart from the files of every model, only files with a listed digest count.
    names = {VERSIONS, SPEC, WEIGHTS, PLAN} | {name for name, facts in files.items() if _is_as_listed(directory / name, facts)}
    check_removable(directory, names)
    return names


def _is_as_listed(path: Path, facts: FileRecord) -> bool:
    try:
        return path.lstat().st_size == facts.bytes and file_record(path) == facts.model_dump()
    except OSError:
        return False


def describe(reason: Exception) -> str:
    """The text of an error without the file name."""
    return (reason.strerror if isinstance(reason, OSError) else None) or str(reason)
