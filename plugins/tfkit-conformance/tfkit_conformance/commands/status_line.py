"""What a command is doing, on one line of the terminal."""

from __future__ import annotations

import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from tfkit.commands import shown, write_drawn


@contextmanager
def status_line() -> Iterator[Callable[[str], None]]:
    """Writes words over the previous ones on standard error, and clears the line at the end. Writes nothing where standard
    error is not a terminal."""

    def write(words: str) -> None:
        if sys.stderr.isatty():
            write_drawn(sys.stderr, f"\r\x1b[K{shown(words)[: shutil.get_terminal_size().columns - 1]}")
            sys.stderr.flush()

    try:
        yield write
    finally:
        write("")
