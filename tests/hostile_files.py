"""What a small file may be replaced by, in a directory that nobody vouches for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any


def as_link(path: Path) -> None:
    path.rename(path.parent.parent / path.name)
    path.symlink_to(path.parent.parent / path.name)


def as_directory(path: Path) -> None:
    path.unlink()
    path.mkdir()


def as_pipe(path: Path) -> None:
    path.unlink()
    os.mkfifo(path)


REPLACED: dict[str, Callable[[Path], Any]] = {
    "link": as_link,
    "directory": as_directory,
    "named pipe": as_pipe,
    "empty": lambda path: path.write_bytes(b""),
    "list": lambda path: path.write_bytes(b"[]"),
    "object": lambda path: path.write_bytes(b"{}"),
    "null": lambda path: path.write_bytes(b"null"),
    "deep": lambda path: path.write_bytes(b"[" * 100_000),
    "deep object": lambda path: path.write_bytes(b'{"format": ' * 100_000),
    "sparse": lambda path: os.truncate(path, 100 << 20),
    "bytes": lambda path: path.write_bytes(bytes(range(256))),
}
