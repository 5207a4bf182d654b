"""Atomic writes: a file is complete or does not appear."""

from __future__ import annotations

import errno
import os
import shutil
import stat
from pathlib import Path

from ..errors import Diagnostic, StoreError
from .read import MAX_BYTES, not_regular, open_regular, read_bytes

Content = str | bytes | Path
"""The content of a file: text, which is written as UTF-8, bytes, or those of another file, which are copied and never held."""


def write_content(path: Path, content: Content) -> None:
    """Write a new file. Raises OSError, also if the file exists, or the content is that of a link."""
    with path.open("xb") as file:
        if isinstance(content, Path):
            with open_regular(content, links=False) as source:
                shutil.copyfileobj(source, file, 1 << 20)
        else:
            file.write(content.encode("utf-8") if isinstance(content, str) else content)


def content_bytes(content: Content, limit: int = MAX_BYTES) -> bytes:
    """The bytes of a content, of a file no more than `limit`. Raises StoreError."""
    if not isinstance(content, Path):
        return content.encode("utf-8") if isinstance(content, str) else content
    try:
        return read_bytes(content, limit, links=False)
    except OSError as reason:
        raise StoreError(Diagnostic("TFK082", f"{content} cannot be read: {reason.strerror}")) from None


def write_whole(path: str | Path, content: str | bytes) -> None:
    """Write a file atomically, even if the power fails.

    Only a regular file is replaced, no device, named pipe, socket or link.

    Args:
        path: the file.
        content: bytes, or text, which is written as UTF-8.

    Raises:
        StoreError: the file cannot be written; nothing was changed.
    """
    import tempfile  # it imports random and hashlib, which nothing else here needs

    place = Path(path)
    try:
        check_replaceable(path)
        number, draft = tempfile.mkstemp(prefix=draft_prefix(place), dir=place.parent)
        try:
            with os.fdopen(number, "wb") as file:
                file.write(content.encode() if isinstance(content, str) else content)
            replace_file(draft, place)
        except BaseException:
            os.unlink(draft)
            raise
    except OSError as reason:
        raise StoreError(
            Diagnostic("TFK081", f"{path} could not be written: {reason.strerror}", "nothing was changed")
        ) from None


def replace_file(draft: str | Path, path: Path) -> None:
    """Give a finished draft the name of a file, after its content reached the disk.

    It gets the mode of the file that it replaces, or that of a new file. Raises OSError.
    """
    with open(draft, "rb") as file:
        os.fsync(file.fileno())
    os.chmod(draft, path.stat().st_mode & 0o777 if path.exists() else 0o666 & ~umask())
    os.replace(draft, path)


def check_replaceable(path: str | Path) -> None:
    """Raises OSError if the path is something other than a regular file, or cannot be a file."""
    if str(path).endswith("/"):  # a `Path` drops it
        raise OSError(errno.EISDIR, "it ends in `/`, which names a directory", str(path))
    try:
        mode = os.lstat(path).st_mode
    except FileNotFoundError:
        return
    except ValueError:
        raise OSError(errno.EINVAL, "no file can have this name", str(path)) from None
    if not stat.S_ISREG(mode):
        raise not_regular(mode, path)


def check_writable(path: str | Path) -> None:
    """Raises OSError if `write_whole` could not write: tries to create another file in the same directory."""
    import tempfile

    check_replaceable(path)
    place = Path(path)
    with tempfile.NamedTemporaryFile(prefix=draft_prefix(place), dir=place.parent):
        pass


def draft_prefix(path: Path) -> str:
    """The prefix of the names of drafts, cut so that a draft of a long name still has a valid name: at most 255 bytes,
    and four for a character."""
    return f".{path.name[:50]}."


def umask() -> int:
    """The permission bits that new files of this process lack."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
