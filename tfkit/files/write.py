"""Files that appear whole or not at all."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from ..errors import Fault, StoreError
from .read import not_regular


def check_writable(path: str | Path) -> None:
    """Whether `write_whole` may put a file at a path. It replaces what is there, so that must be a regular file: replacing
    /dev/null or a named pipe would take it away from everybody. Raises OSError."""
    try:
        mode = os.stat(path).st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISREG(mode):
        raise not_regular(mode, path)


def write_whole(path: str | Path, text: str) -> None:
    """Write a file that appears whole or not at all, after a loss of power too. Raises StoreError."""
    import tempfile  # it imports random and hashlib, which nothing else here needs

    place = Path(path)
    try:
        check_writable(place)
        number, draft = tempfile.mkstemp(prefix=f".{place.name[:60]}.", dir=place.parent)
        try:
            with os.fdopen(number, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(draft, place.stat().st_mode & 0o777 if place.exists() else 0o666 & ~umask())
            os.replace(draft, place)
        except BaseException:
            os.unlink(draft)
            raise
    except OSError as reason:
        raise StoreError(Fault("TFK081", f"{path} could not be written: {reason.strerror}", "nothing was changed")) from None


def umask() -> int:
    """The bits that new files of this process do not get."""
    mask = os.umask(0)
    os.umask(mask)
    return mask
