"""Ctrl-C, a polite kill and a closed terminal end a run after the step at hand, so that nothing that was learnt is lost.
What the process was told to ignore it goes on ignoring."""

from __future__ import annotations

import signal
import threading
from types import FrameType, TracebackType
from typing import Any

SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interrupts:
    """While it is entered, the first signal sets `wanted`; a second one ends the process as it always would, unless it is
    `patient`: torchrun passes on what the terminal has sent already."""

    def __init__(self, patient: bool = False) -> None:
        self.wanted, self.patient = False, patient
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Interrupts:
        if threading.current_thread() is threading.main_thread():  # elsewhere Python lets nobody listen
            # Ignored as under nohup, or None: heard by something that is not Python and could not be put back.
            heard = [number for number in SIGNALS if signal.getsignal(number) not in (signal.SIG_IGN, None)]
            self._before = {number: signal.signal(number, self._note) for number in heard}
        return self

    def _note(self, number: int, frame: FrameType | None) -> None:
        self.wanted = True
        if not self.patient:
            self._restore()

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None) -> None:
        self._restore()

    def _restore(self) -> None:
        for number, handler in self._before.items():
            signal.signal(number, handler)
        self._before = {}
