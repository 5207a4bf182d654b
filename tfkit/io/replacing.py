"""Atomic writes of directories with a listing, which replace only files that tfkit wrote."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from ..errors import Diagnostic, StoreError, TfkitError
from ..files import (
    FileModel,
    FileRecord,
    check_removable,
    file_record,
    make_draft,
    make_folders,
    read_model,
    replace_directory,
    umask,
)
from .layout import ADAPTER, ADAPTER_CONFIG, PLAN, SHORTLIST, SPEC, VERSIONS, WEIGHTS, Versions


@dataclass(frozen=True)
class Kind:
    """A kind of directory that tfkit writes.

    Args:
        name: its name in messages.
        listing: the file that lists the others.
        content: the model of that file, with a field `files`.
        always: files that tfkit may remove from such a directory even if they were altered.
    """

    name: str
    listing: str
    content: type[FileModel]
    always: frozenset[str]


_FILES = frozenset({VERSIONS, SPEC, WEIGHTS, PLAN, ADAPTER, ADAPTER_CONFIG, SHORTLIST})
SAVED_MODEL = Kind("saved model", VERSIONS, Versions, _FILES)


def write_directory(directory: Path, write: Callable[[Path], None], kind: Kind = SAVED_MODEL) -> None:
    """Write a directory under another name and then rename it, so that it is never incomplete. `check_place` comes first.

    Args:
        directory: the directory; an existing one of this kind is replaced.
        write: writes its files into an empty directory.
        kind: what it is.

    Raises:
        StoreError: it cannot be written. Its content is unchanged.
    """
    try:
        make_folders(directory.parent)
        draft = make_draft(directory)
    except (OSError, ValueError) as reason:  # ValueError: a NUL in the name
        raise StoreError(Diagnostic("TFK081", f"{directory.parent} cannot be written: {describe(reason)}")) from None
    try:
        write(draft)
        draft.chmod(0o777 & ~umask())
        replace_directory(draft, directory, written_names(directory, kind) if os.path.lexists(directory) else ())
    except TfkitError:
        raise
    except (OSError, ValueError, SafetensorError, RuntimeError) as reason:  # ValueError: a name that no file can have
        raise StoreError(
            Diagnostic("TFK081", f"{directory} could not be written: {describe(reason)}", "nothing was changed")
        ) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def check_place(directory: Path, overwrite: bool, kind: Kind = SAVED_MODEL) -> None:
    """Raises StoreError (TFK080) if the directory exists and may not be replaced."""
    if os.path.lexists(directory) and written_names(directory, kind) and not overwrite:
        raise StoreError(
            Diagnostic("TFK080", f"{directory} exists already", "choose another directory, or pass overwrite (--force)")
        )


def written_names(directory: Path, kind: Kind = SAVED_MODEL) -> set[str]:
    """The names of the files that tfkit wrote into a directory, none for an empty directory.

    Raises:
        StoreError: TFK080 for a link, and for a directory with files that tfkit did not write there.
    """
    try:
        if directory.is_symlink():
            raise OSError(None, "it is a link")
        if not any(directory.iterdir()):
            return set()
        content: Any = read_model(directory / kind.listing, kind.content)
    except (OSError, StoreError) as reason:
        why = reason.strerror if isinstance(reason, OSError) else reason.diagnostics[0].message
        message = f"{directory} exists and is no {kind.name}, so it is not replaced: {why}"
        raise StoreError(Diagnostic("TFK080", message, "choose another directory")) from None
    # Another program may have written the listing. Apart from `always`, only files with a listed digest count.
    names = kind.always | {name for name, facts in content.files.items() if _is_as_listed(directory / name, facts)}
    check_removable(directory, names)
    return set(names)


def _is_as_listed(path: Path, facts: FileRecord) -> bool:
    try:
        return path.lstat().st_size == facts.bytes and file_record(path) == facts.model_dump()
    except (OSError, ValueError):  # a NUL in the name
        return False


def describe(reason: Exception) -> str:
    """The text of an error without the file name."""
    return (reason.strerror if isinstance(reason, OSError) else None) or str(reason)
