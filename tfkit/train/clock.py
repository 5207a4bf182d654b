"""The wall time of the commands of a run."""

from __future__ import annotations

import time

from .distributed.process_group import ProcessGroup


class RunClock:
    """Wall time of this command and of the earlier commands of the same run, and of the last validation.

    Args:
        start: The `time.monotonic()` at the start of this command.
        processes: The processes of the run; the clock of the first one counts.
    """

    def __init__(self, start: float, processes: ProcessGroup) -> None:
        self.start, self.processes, self.earlier_seconds, self.validation_seconds = start, processes, 0.0, 0.0

    def seconds(self) -> float:
        """Seconds of all commands so far, by the clock of this process."""
        return self.earlier_seconds + time.monotonic() - self.start

    def synchronised_seconds(self) -> float:
        """The seconds of the first process, in all processes. It also synchronises `validation_seconds`."""
        own = (self.seconds(), self.validation_seconds) if self.processes.is_first else (0.0, 0.0)
        seconds, self.validation_seconds = self.processes.sum(*own)
        return seconds
