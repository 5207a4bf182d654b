"""The files that a run was made from. It trains on its own copy of them. `--resume` names those that have changed since."""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ..errors import Diagnostic
from ..files import FileModel, file_record
from ..recipe import Recipe, files_in

LARGEST = 1 << 30
"""A larger file that only has another time of change is not read again: a run from elsewhere may name any file."""
MOST_FILES = 100_000
"""A folder with more files is not compared."""
VECTORS = "vectors."
"""How the name of a file of word vectors begins."""


class Source(FileModel):
    """A file of training data as it was read; of a folder, the names and the sizes of its files. No file of a run says which
    file this is: it has the name of an option of the recipe.

    Attributes:
        bytes: its size.
        sha256: the digest of its content.
        modified: when it was last modified, in nanoseconds.
    """

    bytes: Annotated[int, Field(ge=0, lt=1 << 63)]
    sha256: Annotated[str, Field(pattern="[0-9a-f]{64}")]
    modified: Annotated[int, Field(lt=1 << 63)]


def sources_of(recipe: Recipe) -> dict[str, dict[str, object]]:
    """The files of a recipe, by the name of its option, as JSON data. A file that cannot be read is left to its reader."""
    sources = {}
    for name, path in _named(recipe):
        try:
            sources[name] = _source(path).model_dump()
        except OSError:
            continue
    return sources


def changes_of_files(recipe: Recipe, sources: Mapping[str, Source], directory: Path) -> list[Diagnostic]:
    """A warning for each file of a run that is gone, or is not what was read. `directory` is that of the run's copy of the
    data."""
    changes = []
    for name, path in _named(recipe):
        if (then := sources.get(name)) is None or (what := _change(path, then)) is None:
            continue
        if name.startswith(VECTORS):
            message = f"{path} {what} since this run began, whose tables start from it"
            changes.append(Diagnostic("TFK130", message, "start a new run to train from other vectors", name))
            continue
        message = f"{path} {what} since this run began; training goes on with the rows that it read then, in {directory}"
        changes.append(Diagnostic("TFK130", message, "start a new run to train on other data", f"data.{name}"))
    return changes


def _named(recipe: Recipe) -> Iterator[tuple[str, Path]]:
    for name, value in files_in(recipe.data.options.model_dump(exclude_none=True)).items():
        yield name, Path(value)
    for name, value in (recipe.vectors or {}).items():
        yield f"{VECTORS}{name}", Path(value)


def _change(path: Path, then: Source) -> str | None:
    try:
        if not path.is_dir():
            now = path.stat()
            if now.st_size == then.bytes and now.st_mtime_ns == then.modified:
                return None
            if now.st_size != then.bytes:
                return f"has changed ({then.bytes:,} bytes then, {now.st_size:,} now)"
            if now.st_size > LARGEST:
                return "was modified"
        return None if _source(path).sha256 == then.sha256 else "has changed"
    except FileNotFoundError:
        return "is gone"
    except OSError as reason:
        return f"cannot be read any more ({reason.strerror})"


def _source(path: Path) -> Source:
    if path.is_dir():
        return _folder(path)
    modified = path.stat().st_mtime_ns
    return Source(**file_record(path.resolve()), modified=modified)


def _folder(path: Path) -> Source:
    files: dict[str, int] = {}
    for root, _, names in os.walk(path):
        if len(files) > MOST_FILES:
            raise OSError(errno.EFBIG, f"it holds more than {MOST_FILES:,} files")
        files |= {
            os.path.relpath(file_path, path): os.stat(file_path).st_size
            for name in names
            if (file_path := os.path.join(root, name))
        }
    listing = "".join(f"{files[name]} {name}\0" for name in sorted(files)).encode("utf-8", "surrogateescape")
    return Source(bytes=sum(files.values()), sha256=hashlib.sha256(listing).hexdigest(), modified=path.stat().st_mtime_ns)
