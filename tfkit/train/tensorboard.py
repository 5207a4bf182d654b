"""The callback that writes TensorBoard's event files.

https://www.tensorflow.org/tensorboard
"""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Callable
from pathlib import Path

from tensorboard.compat.proto.event_pb2 import Event, SessionLog
from tensorboard.compat.proto.summary_pb2 import Summary
from tensorboard.summary.writer.record_writer import RecordWriter

from ..errors import Diagnostic
from .callbacks import Step, ValidationResult
from .trainer import Trainer


class TensorBoard:
    """Writes an event file. TensorBoard hides the events of earlier files after the step from which a run was resumed.

    Every event is written immediately. After the first failure, which is passed to `report`, no more events are written.
    """

    def __init__(self, directory: Path, report: Callable[[tuple[Diagnostic, ...]], None]) -> None:
        self.directory, self.report = directory, report
        self._records: RecordWriter | None = None

    def on_train_start(self, trainer: Trainer, changes: list[str]) -> None:
        name = f"events.out.tfevents.{int(time.time()):010}.{socket.gethostname()}.{os.getpid()}.{time.monotonic_ns()}"
        step = trainer.progress.step + 1
        try:
            self.directory.mkdir(exist_ok=True)
            self._records = RecordWriter((self.directory / name).open("xb", buffering=0))
        except OSError as reason:
            self._failed(reason)
        self._write(Event(file_version="brain.Event:2", step=step))
        self._write(Event(session_log=SessionLog(status=SessionLog.START), step=step))

    def on_step_end(self, step: Step) -> None:
        counts = {"source": step.source_tokens, "target": step.target_tokens}
        values = {"train/loss": step.loss, "train/nll": step.nll, "train/perplexity": step.perplexity}
        values |= {"train/learning_rate": step.rate, "train/gradient_norm": step.norm}
        values |= {f"speed/{side}_tokens_per_second": count / step.seconds for side, count in counts.items() if count}
        self._add(step.step, values)

    def on_validation_end(self, result: ValidationResult) -> None:
        values = {"validation/nll": result.nll, "validation/perplexity": result.perplexity}
        self._add(result.step, values | {f"validation/{name}": value for name, value in result.scores.items()})

    def _add(self, step: int, values: dict[str, float]) -> None:
        scalars = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._write(Event(summary=Summary(value=scalars), step=step))

    def _write(self, event: Event) -> None:
        if self._records is None:
            return
        event.wall_time = time.time()
        try:
            self._records.write(event.SerializeToString())
        except OSError as reason:
            self._failed(reason)

    def _failed(self, reason: OSError) -> None:
        self.close()
        message = f"{self.directory} could not be written: {reason.strerror}"
        self.report((Diagnostic("TFK081", message, "training continues without events for TensorBoard"),))

    def close(self) -> None:
        """Close the file."""
        if self._records is not None:
            self._records.close()
            self._records = None

    def on_checkpoint(self, step: int, path: Path) -> None:
        pass

    def on_warning(self, diagnostics: tuple[Diagnostic, ...]) -> None:
        pass

    def on_train_end(self, reason: str, model: Path) -> None:
        self.close()
