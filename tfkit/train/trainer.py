"""The training loop."""

from __future__ import annotations

import signal
import threading
import time
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, NoReturn

from ..data import Epoch
from ..errors import TrainingError
from ..recipe import Recipe, schedule_warning
from .callbacks import Progress, Step
from .checkpointer import BestModels, Checkpointer
from .distributed.process_group import ProcessGroup, ProcessLost
from .pretrained import LoadReport
from .run_directory import RunOutput
from .step import NotFinite, TrainStep, report_not_finite
from .validation import Validator
from .vectors import VectorReport


class RunClock:
    """Wall time of this command, since `start` of `time.monotonic()`, and of the earlier commands of the same run, and of the
    last validation. The clock of the first process counts."""

    def __init__(self, start: float, processes: ProcessGroup) -> None:
        self.start, self.processes, self.earlier_seconds, self.validation_seconds = start, processes, 0.0, 0.0

    def seconds(self) -> float:
        """Seconds of all commands so far, by the clock of this process."""
        return self.earlier_seconds + time.monotonic() - self.start

    def synchronised_seconds(self) -> float:
        """The seconds of the first process, in all processes. It also synchronises `validation_seconds`."""
        times = (self.seconds(), self.validation_seconds) if self.processes.is_first else (0.0, 0.0)
        seconds, self.validation_seconds = self.processes.sum(*times)
        return seconds


def why_stop(recipe: Recipe, progress: Progress, validation_seconds: float) -> str | None:
    """The reason to stop by the limits of a recipe, or None. `max_minutes` includes the expected time of the validation at the
    end."""
    limits = recipe.stopping
    if limits.max_steps is not None and progress.step >= limits.max_steps:
        return f"{limits.max_steps:,} steps are made"
    if limits.max_epochs is not None and progress.epoch > limits.max_epochs:
        return f"{limits.max_epochs:,} epochs are complete"
    if limits.patience is not None and progress.stale >= limits.patience:
        return f"{progress.stale} validations without a better score"
    if limits.max_minutes is not None and progress.step and progress.seconds + validation_seconds >= 60 * limits.max_minutes:
        reserved = f", less {validation_seconds:.0f} s for the last validation" if validation_seconds >= 1 else ""
        return f"{limits.max_minutes:g} minutes are over{reserved}"
    return None


SIGNALS = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name))


class Interrupts:
    """A context in which the first signal sets `requested`. A second signal has its usual effect, but for `patient`: torchrun
    forwards a signal that the terminal has already sent."""

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


class Trainer:
    """Trains a model: steps, validations and checkpoints until a stopping rule of the recipe applies.

    Attributes:
        model: The model in training.
        recipe: The recipe of the run.
        data: Its data.
        processes: The processes that train together.
        batches: The batches of every epoch.
        progress: The progress of the run.
        load_report: The tensors that were loaded from a pretrained model; None without one.
        vectors: The tables that were set from files of word vectors.
    """

    def __init__(
        self,
        step: TrainStep,
        output: RunOutput,
        best_models: BestModels,
        checkpointer: Checkpointer,
        validator: Validator,
        clock: RunClock,
        load_report: LoadReport | None = None,
        vectors: tuple[VectorReport, ...] = (),
    ) -> None:
        self.step, self.output, self.best_models, self.checkpointer = step, output, best_models, checkpointer
        self.validator, self.clock, self.load_report, self.vectors = validator, clock, load_report, vectors
        self.model, self.recipe, self.data, self.processes = step.model, step.recipe, step.data, step.processes
        self.batches, self.callbacks = step.batches, output.callbacks
        self._batch_before_step: int | None = None

    @property
    def progress(self) -> Progress:
        return self.step.progress

    @property
    def fsdp(self) -> bool:
        """Whether each process holds a shard of every weight."""
        return self.step.state.fsdp

    def epoch(self) -> Epoch:
        """The batches of the current epoch."""
        return self.batches.epoch(self.progress.epoch)

    def restore(self, earlier: bool) -> None:
        """Continue from the latest checkpoint; `earlier` allows an older one if it is damaged. Raises StoreError."""
        self.checkpointer.restore(earlier)
        self.clock.earlier_seconds = self.progress.seconds
        self.best_models.forget_missing()

    def train(self, changes: list[str]) -> str:
        """Train until a stopping rule applies, and return it. `changes` are those to the spec that the data needed, for the
        callbacks. Raises KeyboardInterrupt on a signal, after the current step and a checkpoint; TrainingError if the loss is
        NaN or infinite, or another process is lost; StoreError if the last checkpoint could not be written, or the directory of
        the run was removed."""
        self.progress.seconds = self.clock.synchronised_seconds()
        for callback in self.callbacks.callbacks:
            callback.on_train_start(self, changes)
        if warning := schedule_warning(self.recipe, last_step(self), self.progress.step):
            self.callbacks.notify(lambda callback: callback.on_warning((warning,)))
        with Interrupts(patient=self.processes.count > 1) as interrupts:
            try:
                with self.processes.reporting_lost_process():
                    reason = self._loop(interrupts)
            except BaseException as error:  # a second signal included
                self._save_after(error)
                raise
        self.callbacks.notify(lambda callback: callback.on_train_end(reason, self.best_models.path()))
        if failure := self.output.unsaved or self.callbacks.failure:
            raise failure
        return reason

    def _loop(self, interrupts: Interrupts) -> str:
        progress, every_steps = self.progress, self.recipe.keeping.every_steps
        while (reason := why_stop(self.recipe, progress, self.clock.validation_seconds)) is None:
            if not self.validator.is_due:  # it is due in a resumed run that stopped before a validation
                self._step()
            if self.validator.is_due:
                self._validate(patience=True)
            progress.seconds = self.clock.synchronised_seconds()
            if self._must_stop(interrupts):
                self._read()
                self.checkpointer.save()
                raise self.output.removed or self.output.unsaved or self.callbacks.failure or KeyboardInterrupt
            if progress.step % every_steps == 0 and not self.checkpointer.is_current:
                self.checkpointer.save()
        self._read()
        if progress.validated != progress.step:
            self._validate(patience=False)
            self.checkpointer.saved_step = -1
        if not self.checkpointer.is_current:
            self.checkpointer.save()
        return reason

    def _step(self) -> None:
        progress = self.progress
        self._batch_before_step = progress.batch
        try:
            self.step.launch(self._report)
            step = None if self.step.late and not self._pauses() else self.step.read()
        except NotFinite as error:
            self._stop_not_finite(error)
        if self.step.epoch_complete:
            progress.epoch, progress.batch = progress.epoch + 1, 0
        self._batch_before_step = None
        if notices := tuple(self.step.notices):
            self.step.notices.clear()
            self.callbacks.notify(lambda callback: callback.on_warning(notices))
        self._report(step)

    def _pauses(self) -> bool:
        """Whether anything but the next step of the epoch follows a step: a validation, a checkpoint or the end."""
        progress = self.progress
        return (
            self.step.epoch_complete
            or self.validator.is_due
            or progress.step % self.recipe.keeping.every_steps == 0
            or why_stop(self.recipe, progress, self.clock.validation_seconds) is not None
        )

    def _read(self) -> None:
        """Read the numbers of the last step now."""
        try:
            step = self.step.read()
        except NotFinite as error:
            self._stop_not_finite(error)
        self._report(step)

    def _report(self, step: Step | None) -> None:
        """Tell the callbacks of a step, after which its numbers are read."""
        if step is None:
            return
        if self.processes.is_first:
            self.progress.seconds = self.clock.seconds()  # for the callbacks; the other processes get it after the step
        self.callbacks.notify(lambda callback: callback.on_step_end(step))

    def _validate(self, patience: bool) -> None:
        result = self.validator.validate(patience)
        if result is not None:
            self.clock.validation_seconds = result.seconds
            self.callbacks.notify(lambda callback: callback.on_validation_end(result))

    def _must_stop(self, interrupts: Interrupts) -> bool:
        """Whether a signal, a failed callback or a removed directory stops the run, in any process."""
        stops_here = interrupts.requested or self.callbacks.failure is not None or self.output.removed is not None
        (stopping,) = self.processes.sum(stops_here)
        return bool(stopping)

    def _undo_batches(self) -> None:
        """Return to the position in the data before the step that failed."""
        if self._batch_before_step is not None:
            self.progress.batch, self._batch_before_step = self._batch_before_step, None

    def _stop_not_finite(self, error: NotFinite) -> NoReturn:
        """Save the state before the step, and its batches. Raises TrainingError in all processes."""
        batches = [self.step.batch(number) for number in error.batches]
        self.progress.batch, self._batch_before_step = error.batches.start, None
        self.checkpointer.save()
        checkpoint = self.checkpointer.path if self.output.unsaved is None else None
        has_best = bool(self.progress.best_models)
        self.processes.run_on_first(lambda: report_not_finite(error, batches, self.output.directory, checkpoint, has_best))
        raise AssertionError("the first process raises, and so do the others")

    def _save_after(self, error: BaseException) -> None:
        """Write a checkpoint after a failure, if the state is that of a completed step.

        With several processes, one of them may be lost, so the first process writes alone. It cannot do so if the weights are
        sharded. A step changes no state before its last collective: if a collective failed, the state is that of the previous
        step.
        """
        several = self.processes.count > 1
        # The state before such a step is saved, and that after it is of no use.
        not_finite = isinstance(error, TrainingError) and error.diagnostics[0].code == "TFK110"
        if self.output.removed or not_finite or (several and (self.fsdp or not self.processes.is_first)):
            return
        if isinstance(error, ProcessLost):
            self._undo_batches()
        if self._batch_before_step is None:
            with suppress(NotFinite):
                self.step.read()
            if not self.checkpointer.is_current:
                self.checkpointer.save_alone()


def steps_per_epoch(trainer: Trainer) -> int:
    """The steps of an epoch; its last step may have fewer batches than the others."""
    return -(-len(trainer.epoch().batches) // trainer.recipe.batching.accumulate)


def last_step(trainer: Trainer) -> int | None:
    """The last step by `max_steps` and `max_epochs`, the earlier one; None without both."""
    stopping, progress = trainer.recipe.stopping, trainer.progress
    ends = [] if stopping.max_steps is None else [stopping.max_steps]
    if stopping.max_epochs is not None:
        used = -(-progress.batch // trainer.recipe.batching.accumulate)
        left = (stopping.max_epochs - progress.epoch + 1) * steps_per_epoch(trainer) - used
        ends.append(progress.step + left)
    return min(ends, default=None)
