"""The callback that writes the log of a run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import Diagnostic, StoreError
from .callbacks import Step, Validated
from .log import append_log
from .run_files import LOG
from .run_output import RunOutput


class LogWriter:
    """Appends every step and validation to the log. Where that fails, training continues, and the failure is reported once
    until writing works again."""

    def __init__(self, output: RunOutput) -> None:
        self.output, self.path, self._failing = output, output.directory / LOG, False

    def stepped(self, step: Step) -> None:
        self._append("step", asdict(step))

    def validated(self, result: Validated) -> None:
        self._append("validation", asdict(result))

    def _append(self, kind: str, entry: dict[str, Any]) -> None:
        try:
            self.output.check()
            append_log(self.path, {"kind": kind, **entry})
            self._failing = False
        except StoreError:  # the directory is gone, which ends the run
            return
        except OSError as reason:
            if not self._failing:
                message = f"{self.path} could not be written: {reason.strerror}"
                fix = "training goes on; the log lacks the steps from here until it can be written"
                self.output.callbacks.notify(lambda callback: callback.trouble((Diagnostic("TFK081", message, fix),)))
            self._failing = True

    def began(self, trainer: Any, changes: list[str]) -> None:
        pass

    def saved(self, step: int, path: Path) -> None:
        pass

    def trouble(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        pass

    def ended(self, reason: str, model: Path) -> None:
        pass
