"""A time limit for one example: code that runs longer is interrupted, which is a violation."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from .finding import OutOfTime


@contextmanager
def time_limit(seconds: float) -> Iterator[None]:
    """Raise OutOfTime, a Violation, after that many seconds. Only the main thread of a POSIX process can be interrupted;
    elsewhere there is no limit. A kernel that never returns to Python is ended by the parent process."""
    if threading.current_thread() is not threading.main_thread() or not callable(getattr(signal, "setitimer", None)):
        yield
        return

    def ring(number: int, frame: FrameType | None) -> None:
        raise OutOfTime("contract", f"did not finish within {seconds:g} seconds")

    before = signal.signal(signal.SIGALRM, ring)
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
