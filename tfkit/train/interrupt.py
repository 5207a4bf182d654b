"""SIGINT, SIGTERM and SIGHUP end a run after the current step, so that it is saved. Ignored signals stay ignored."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interrupts:
    """A context in which the first signal sets `requested`. A second signal has its usual effect.

    Args:
        patient: All signals only set `requested`. torchrun forwards a signal that the terminal has already sent.
    """

    def __init__(self, patient: bool = False) -> None:
        self.requested, self.patient = False, patient
        self._handlers: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():  # Python sets handlers in no other thread
            # SIG_IGN, as under nohup, stays. None is a handler outside Python, which could not be restored.
            handled = [number for number in SIGNALS if signal.getsignal(number) not in (signal.SIG_IGN, None)]
            self._handlers = {number: signal.signal(number, self._request) for number in handled}
        return self

    def _request(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        if not self.patient:
            self._restore()

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._handlers.items():
            signal.signal(number, handler)
        self._handlers = {}
