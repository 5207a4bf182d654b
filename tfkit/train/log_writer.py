"""The callback that writes the log of a run."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Any

from ..errors import Diagnostic, StoreError
from .callbacks import Step, ValidationResult
from .log import append_log
from .run_files import LOG
from .run_output import RunOutput


class LogWriter:
    """Appends every step and validation to the log. If that fails, training continues, and the failure is reported once until
    writing works again."""

    def __init__(self, output: RunOutput) -> None:
        self.output, self.path, self._failing = output, output.directory / LOG, False

    def on_step_end(self, step: Step) -> None:
        self._append("step", asdict(step))

    def on_validation_end(self, result: ValidationResult) -> None:
        self._append("validation", asdict(result))

    def _append(self, kind: str, entry: dict[str, Any]) -> None:
        try:
            self.output.check()
            append_log(self.path, {"kind": kind, **entry})
            self._failing = False
        except StoreError:  # the directory was removed, which ends the run
            return
        except OSError as reason:
            if not self._failing:
                message = f"{self.path} could not be written: {reason.strerror}"
                fix = "training continues; the log misses steps until it can be written again"
                self.output.callbacks.notify(lambda callback: callback.on_warning((Diagnostic("TFK081", message, fix),)))
            self._failing = True

    def on_train_start(self, trainer: Any, changes: list[str]) -> None:
        pass

    def on_checkpoint(self, step: int, path: Path) -> None:
        pass

    def on_warning(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        pass

    def on_train_end(self, reason: str, model: Path) -> None:
        pass
