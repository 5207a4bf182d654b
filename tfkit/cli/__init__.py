"""The command `tfkit`.

Exit codes: 0 fine, 1 a check or a run failed, 2 the input is wrong, 3 incomplete; 130 interrupted, 141 the reader of a pipe
closed it. Data goes to standard output, errors to standard error; with `--json` both are JSON on standard output.
(`tfkit conformance` and `tfkit bench` take `--json FILE`; with `--json -` they write JSON to standard output.)

This module imports nothing heavy, so that an interruption during the imports ends as quietly as any other.
"""

from __future__ import annotations

import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from types import FrameType


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command line.

    Args:
        argv: the words after `tfkit`; by default those of the process.

    Returns:
        The exit code. No exception escapes.
    """
    if argv is None:
        _count_bursts_once()
    try:
        from .dispatch import run

        return run(list(sys.argv[1:] if argv is None else argv))
    except KeyboardInterrupt:
        if sys.stderr is not None:
            with suppress(OSError):
                print("tfkit: interrupted", file=sys.stderr)
        return 130
    finally:
        if argv is None and signal.getsignal(signal.SIGINT) is _interrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)  # the process ends


BURST = 3.0
"""Seconds after a Ctrl-C in which others say the same: what it cleans up is not interrupted."""
_interrupted = -BURST


def _interrupt(number: int, frame: FrameType | None) -> None:
    global _interrupted
    if time.monotonic() - _interrupted >= BURST:
        _interrupted = time.monotonic()
        raise KeyboardInterrupt


def _count_bursts_once() -> None:
    main_thread = threading.current_thread() is threading.main_thread()
    if main_thread and signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupt)
