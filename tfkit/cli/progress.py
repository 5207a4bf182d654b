"""The progress of a long command on standard error: one line updated in place; without a terminal, one line every 30 s."""

from __future__ import annotations

import sys
import threading
import time

SECONDS = 30.0
"""Seconds between two lines without a terminal."""
COLUMNS = 100


class Progress:
    """Shows the current check of a long command. On a terminal it is updated at once and erased at the end. Otherwise it is
    printed at intervals with the elapsed time, so that a fast command prints nothing.

    Args:
        command: name of the command.
        seconds: the interval; `SECONDS` by default.
    """

    def __init__(self, command: str, seconds: float | None = None) -> None:
        self.command, self.words, self.steps = command, "", 0
        self.seconds = SECONDS if seconds is None else seconds
        self.terminal = sys.stderr.isatty()
        self.start = time.monotonic()
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._repeat, daemon=True)

    def __enter__(self) -> Progress:
        if not self.terminal:
            self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        if self.terminal:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)
        else:
            self._thread.join()

    def show(self, words: str) -> None:
        """Set the current check.

        Args:
            words: its description.
        """
        self.words, self.steps = words, self.steps + 1
        if self.terminal:
            print(f"\r\x1b[K{words[:COLUMNS]}", end="", file=sys.stderr, flush=True)

    def line(self) -> str:
        """The current check as text.

        Returns:
            The command, the elapsed time and the check.
        """
        return f"{self.command}: {time.monotonic() - self.start:.0f} s, check {self.steps}, {self.words}"

    def _repeat(self) -> None:
        while not self._over.wait(self.seconds):
            print(self.line(), file=sys.stderr, flush=True)
