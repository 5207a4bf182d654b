"""Atomic writes: a file is complete or does not appear."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path

from ..errors import Diagnostic, StoreError
from .read import not_regular


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
        check_replaceable(place)
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


def check_replaceable(path: Path) -> None:
    """Raises OSError if the path is something other than a regular file, or cannot be a file."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    except ValueError:
        raise OSError(errno.EINVAL, "no file can have this name", str(path)) from None
    if not stat.S_ISREG(mode):
        raise not_regular(mode, path)


def check_writable(path: Path) -> None:
    """Raises OSError if `write_whole` could not write: tries to create another file in the same directory."""
    import tempfile

    check_replaceable(path)
    with tempfile.NamedTemporaryFile(prefix=draft_prefix(path), dir=path.parent):
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
