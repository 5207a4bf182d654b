"""Ctrl-C pressed several times counts once, so that what it cleans up is not interrupted.

`tfkit.cli` imports this module where an interruption is already handled.
"""

from __future__ import annotations

import signal
import threading
import time
from types import FrameType

BURST = 3.0
"""Seconds after a Ctrl-C in which others say the same."""
_interrupted = -BURST


def count_bursts_once() -> None:
    """Unless the process has a way of its own, or this is not its main thread."""
    main_thread = threading.current_thread() is threading.main_thread()
    if main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)


def ignore_further_ones() -> None:
    """The process ends."""
    if signal.getsignal(signal.SIGINT) is _interrupt:
        signal.signal(signal.SIGINT, signal.SIG_IGN)


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _interrupted
    if time.monotonic() - _interrupted >= BURST:
        _interrupted = time.monotonic()
        raise KeyboardInterrupt
