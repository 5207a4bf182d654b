"""Directories of files that tfkit wrote, with a listing of their sizes and SHA-256 digests.

tfkit never removes a file that the listing does not name, and follows no link.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from ..errors import Diagnostic, StoreError
from .read import FileModel, FileRoot, child, open_regular, refusals


class FileRecord(FileModel):
    """Size and SHA-256 of a file."""

    bytes: Annotated[int, Field(ge=0, lt=1 << 63)]
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Listing(FileRoot[dict[str, FileRecord]]):
    """Files of a directory by name."""


LARGE, MOST_HOLE = 1 << 30, 1_000
"""A file of more than `LARGE` bytes is not read if it is `MOST_HOLE` times as large as what is stored of it."""


def file_record(path: Path) -> dict[str, Any]:
    """Size and SHA-256 of a regular file, as a listing holds them. Raises OSError, also for a file that is nearly all hole: it
    takes no room on a disk, and would be read for hours."""
    import hashlib  # few commands need it

    with open_regular(path, links=False) as file:
        size = os.fstat(file.fileno()).st_size
        if size > LARGE and (stored := _stored(file.fileno(), size)) * MOST_HOLE < size:
            raise OSError(errno.EFBIG, f"of its {size:,} bytes {stored:,} are stored, and the rest is a hole", str(path))
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
        return {"bytes": file.tell(), "sha256": digest.hexdigest()}


def _stored(descriptor: int, size: int) -> int:
    """The bytes of a file outside of holes, at least those of its first 1,000 extents; all where the system knows no holes."""
    stored = at = 0
    try:
        for _ in range(1_000):
            start = os.lseek(descriptor, at, os.SEEK_DATA)
            at = os.lseek(descriptor, start, os.SEEK_HOLE)
            stored += at - start
        return size
    except OSError as reason:
        return stored if reason.errno == errno.ENXIO else size  # no data after the last extent
    finally:
        os.lseek(descriptor, 0, os.SEEK_SET)


def check_files(listing: Path, files: Mapping[str, Any], *, folders: Collection[str] = ()) -> None:
    """Compare files with the listing in their directory: all sizes first, then every digest.

    Args:
        listing: The file that holds the listing; the files are in its directory.
        files: Its content by name, as `FileRecord` or as plain data.
        folders: The folders in which files may lie. Any other name is that of a plain child.

    Raises:
        StoreError: TFK082 with the first file that is missing, a link, not regular, or of another size or digest.
    """
    records = check_sizes(listing, files, folders=folders)
    for name, expected in records.items():
        check_digest(listing.parent / name, expected)


def check_sizes(listing: Path, files: Mapping[str, Any], *, folders: Collection[str] = ()) -> dict[str, FileRecord]:
    """Compare the sizes of files with the listing in their directory, without reading them. Arguments as in `check_files`.

    Returns:
        The listing.

    Raises:
        StoreError: TFK082 with the first file that is missing, a link, not regular, or of another size.
    """
    for name in files:
        try:
            _listed(listing.parent, name, folders)
        except ValueError as reason:
            message = f"{listing} names the file {name[:80]}, which is elsewhere: {reason}"
            raise StoreError(Diagnostic("TFK082", message, "it was altered")) from None
    try:
        records = Listing.model_validate(dict(files)).root
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        message = f"{listing} does not give the size and SHA-256 of {name}: {refusals(error)[0]}"
        raise StoreError(Diagnostic("TFK082", message, "it was altered")) from None
    for name, expected in records.items():
        try:
            with open_regular(listing.parent / name, links=False) as file:
                size = os.fstat(file.fileno()).st_size
        except OSError as reason:
            raise _unreadable(listing.parent / name, reason) from None
        if size != expected.bytes:
            raise _altered(listing.parent / name, f"{size:,} bytes", expected)
    return records


def check_digest(path: Path, expected: FileRecord) -> None:
    """Raises StoreError if a file has another size or digest than its listing."""
    try:
        record = file_record(path)
    except OSError as reason:
        raise _unreadable(path, reason) from None
    if record != expected.model_dump():
        raise _altered(path, f"{record['bytes']:,} bytes with SHA-256 {record['sha256'][:12]}...", expected)


def _unreadable(path: Path, reason: OSError) -> StoreError:
    if reason.errno == errno.ENOENT:
        return StoreError(Diagnostic("TFK082", f"{path} is missing"))
    return StoreError(Diagnostic("TFK082", f"{path} cannot be read: {reason.strerror}"))


def _altered(path: Path, actual: str, expected: FileRecord) -> StoreError:
    written = f"{expected.bytes:,} bytes with SHA-256 {expected.sha256[:12]}..."
    return StoreError(Diagnostic("TFK082", f"{path} has {actual}, but {written} were written", "it was altered or cut off"))


def _listed(directory: Path, name: str, folders: Collection[str]) -> Path:
    folder, slash, last = name.partition("/")
    return child(child(directory, folder), last) if slash and folder in folders else child(directory, name)


def foreign(directory: Path, names: Collection[str]) -> list[str]:
    """The entries of a directory other than regular files with these names; links and unlisted folders count as foreign.

    A name `shards/x` is that of a file in the folder `shards`. Raises OSError.
    """
    others = []
    with os.scandir(directory) as entries:
        for entry in entries:
            inner = _inside(entry.name, names)
            if inner and entry.is_dir(follow_symlinks=False):
                others += [f"{entry.name}/{other}" for other in foreign(directory / entry.name, inner)]
            elif entry.name not in names or not entry.is_file(follow_symlinks=False):
                others.append(entry.name)
    return sorted(others)


def check_removable(directory: Path, names: Collection[str]) -> None:
    """Raises StoreError (TFK080) if a directory may not be removed or replaced: it is a link, or it holds anything else than
    regular files with these names, those that tfkit wrote there."""
    if directory.is_symlink():
        raise StoreError(Diagnostic("TFK080", f"{directory} is a link, and no link is replaced", "name the directory itself"))
    try:
        others = foreign(directory, names)
    except OSError as reason:
        raise StoreError(Diagnostic("TFK080", f"{directory} is not replaced: {reason.strerror}")) from None
    if others:
        listed = ", ".join(others[:3]) + (f" and {len(others) - 3} more" if len(others) > 3 else "")
        message = f"{directory} is not replaced: it holds {listed}, which tfkit did not write there"
        raise StoreError(Diagnostic("TFK080", message, "move what you want to keep, or choose another directory"))


def remove_written(directory: Path, names: Collection[str]) -> None:
    """Remove a directory that holds only files with these names, which tfkit wrote.

    Raises:
        StoreError: TFK080 if `check_removable` refuses, and nothing was removed; TFK081 if the system refuses.
    """
    check_removable(directory, names)
    try:
        _remove(directory, names)
    except OSError as reason:
        raise StoreError(Diagnostic("TFK081", f"{directory} could not be removed: {reason.strerror}")) from None


def _remove(directory: Path, names: Collection[str]) -> None:
    for entry in list(os.scandir(directory)):
        if entry.is_dir(follow_symlinks=False):
            _remove(directory / entry.name, _inside(entry.name, names))
        elif entry.name in names:
            os.unlink(entry.path)
    directory.rmdir()


def _inside(folder: str, names: Collection[str]) -> set[str]:
    return {name.removeprefix(f"{folder}/") for name in names if name.startswith(f"{folder}/")}
