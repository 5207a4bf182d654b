"""Files that appear whole or not at all."""

from __future__ import annotations

import os
from pathlib import Path

from ..errors import Fault, StoreError


def write_whole(path: str | Path, text: str) -> None:
    """Write a file that appears whole or not at all, after a loss of power too. Raises StoreError."""
    import tempfile  # it imports random and hashlib, which nothing else here needs

    place = Path(path)
    try:
        if place.is_dir():
            raise IsADirectoryError(None, "it is a directory")
        number, draft = tempfile.mkstemp(prefix=f".{place.name}.", dir=place.parent)
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
