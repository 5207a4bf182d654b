"""What a run keeps while it goes: checkpoints, the best models, its log; and when it stops."""

from __future__ import annotations

import json
import math
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

from safetensors import SafetensorError
from safetensors.torch import save_file

from ..catalogue import Catalogue
from ..data import LABELS, Batch, tokeniser_texts
from ..errors import Diagnostic, StoreError, TrainingError
from ..files import write_whole
from ..io import save
from ..io.layout import BEST
from ..metrics import Score
from ..nn.model import Model
from . import checkpoint
from .callbacks import Callback, Progress, Validated
from .distributed.process_group import ProcessLost
from .interrupt import Interrupts
from .log import append_log
from .run_directory import LOG, MODELS, identity, remove_saved, saved_steps
from .state import State
from .trainer import NotFinite, Trainer, why_stop
from .validation import validation_nll, validation_scores


class TrainingLoop:
    """Runs a trainer and keeps what it makes in the directory of the run. Of several processes all run, the first one keeps."""

    def __init__(
        self,
        directory: Path,
        trainer: Trainer,
        digests: Mapping[str, str],
        catalogue: Catalogue,
        callbacks: Sequence[Callback],
        since: float,
    ) -> None:
        self.directory, self.trainer, self.digests = directory, trainer, dict(digests)
        self.processes = trainer.processes
        self.catalogue, self.callbacks = catalogue, callbacks if self.processes.is_first else ()
        self.unsaved: StoreError | None = None
        self._failed: Exception | None = None
        self._saved, self._logs = -1, True
        self._within_step, self._before = False, 0
        self._since, self._earlier, self._closing = since, 0.0, 0.0
        self._place = identity(directory)
        self._removed: StoreError | None = None

    @property
    def progress(self) -> Progress:
        return self.trainer.progress

    def measure(self) -> None:
        """Note how long this command and those before it have worked on the run, and what a validation takes: what the first
        process says holds for all."""
        mine = (self._seconds(), self._closing) if self.processes.is_first else (0.0, 0.0)
        self.progress.seconds, self._closing = self.processes.sums(*mine)

    def _seconds(self) -> float:
        return self._earlier + time.monotonic() - self._since

    def run(self) -> str:
        """Train until there is a reason to stop; gives it.

        Raises KeyboardInterrupt after saving, TrainingError where the loss is no number or another process is gone, StoreError
        where in the end, or when interrupted, nothing can be written.
        """
        with Interrupts(patient=self.processes.count > 1) as interrupts:
            try:
                with self.processes.reporting_once():
                    reason = self._train(interrupts)
            except BaseException as error:  # also when interrupted a second time: nothing that was learnt is lost
                self._rescue(error)
                raise
        self._watch(lambda callback: callback.ended(reason, self.best_model()))
        if trouble := self.unsaved or self._failed:
            raise trouble
        return reason

    def _watch(self, tell: Callable[[Callback], None]) -> None:
        """Tell those who watch. One that fails stops the run as Ctrl-C does, after the step at hand and once it is saved."""
        for callback in self.callbacks:
            try:
                tell(callback)
            except Exception as error:
                self._failed = self._failed or error

    def _train(self, interrupts: Interrupts) -> str:
        recipe, progress = self.trainer.recipe, self.progress
        while (reason := why_stop(recipe, progress, self._closing)) is None:
            if not self._owes_validation():  # as a run does that was stopped in the middle of one
                self._step()
            if self._owes_validation():
                self._validate(counts=True)
            self.measure()
            (wanted,) = self.processes.sums(interrupts.wanted or self._failed is not None or self._removed is not None)
            if wanted:
                self._save()
                raise self._removed or self.unsaved or self._failed or KeyboardInterrupt
            if progress.step % recipe.keeping.every_steps == 0 and self._saved != progress.step:
                self._save()
        if progress.validated != progress.step:
            self._validate(counts=False)
            self._saved = -1
        if self._saved != progress.step:
            self._save()
        return reason

    def _rescue(self, error: BaseException) -> None:
        """Save what was learnt, where that is whole. Where another process is gone, or knows nothing of it, the first one
        does what it can alone: it has all of it, unless it is sharded. Nothing changes within a step before the last
        word between processes, so that its beginning is as good as its end."""
        alone, progress = self.processes.count > 1, self.progress
        if self._removed or (alone and (self.trainer.fsdp or not self.processes.is_first)):
            return
        if self._within_step and isinstance(error, ProcessLost):
            progress.batch, self._within_step = self._before, False
        if self._saved != progress.step and not self._within_step:
            self._keep_checkpoint(self._write_checkpoint)

    def _step(self) -> None:
        """One step, told to who watches, unless the scaler left it out."""
        trainer, progress = self.trainer, self.progress
        self._before, self._within_step = progress.batch, True
        try:
            step = trainer.step()
        except NotFinite as trouble:
            self._tell(trouble)
        if trainer.epoch_done:
            progress.epoch, progress.batch = progress.epoch + 1, 0
        self._within_step = False
        if step is None:
            return
        if self.processes.is_first:
            progress.seconds = self._seconds()  # for who watches; in all processes after the step
        self._log("step", asdict(step))
        self._watch(lambda callback: callback.stepped(step))

    def _log(self, kind: str, entry: dict[str, Any]) -> None:
        """Add to the log. Where that fails, training goes on, and the fault is reported once until it works again."""
        if not self.processes.is_first:
            return
        try:
            self._check_place()
            append_log(self.directory / LOG, {"kind": kind, **entry})
            self._logs = True
        except StoreError:
            return
        except OSError as reason:
            if self._logs:
                message = f"{self.directory / LOG} could not be written: {reason.strerror}"
                diagnostic = Diagnostic(
                    "TFK081", message, "training goes on; the steps from here on are missing there until it can be"
                )
                self._watch(lambda callback: callback.trouble((diagnostic,)))
            self._logs = False

    def _check_place(self) -> None:
        """Raises StoreError where the directory of the run is not there any more."""
        if identity(self.directory) != self._place:
            message = f"{self.directory} was removed or replaced while the run was working in it"
            self._removed = StoreError(
                Diagnostic("TFK081", message, "nothing more can be kept; what is elsewhere was left alone")
            )
            raise self._removed

    def _tell(self, trouble: NotFinite) -> NoReturn:
        """Keep what is needed to see the step again: the state before it, and its batches. Raises TrainingError."""
        batches = [self.trainer.batch(number) for number in trouble.batches]
        self.progress.batch, self._within_step = self._before, False
        self._save()
        self.processes.first(lambda: self._tell_batches(trouble, batches))
        raise AssertionError("the first process raises, so all do")

    def _tell_batches(self, trouble: NotFinite, batches: Sequence[Batch]) -> NoReturn:
        path = self.directory / f"not-finite-step-{trouble.step}.safetensors"
        tensors = {
            f"{number}/{name}": tensor.cpu().contiguous()
            for number, batch in enumerate(batches)
            for name, tensor in {**batch.inputs, "labels": batch.labels}.items()
        }
        try:
            save_file(tensors, path)
            where = f"its batches are in {path}"
        except (OSError, SafetensorError) as reason:
            where = f"its batches could not be written ({reason})"
        if self.unsaved is None:
            where += f", the state before it in {self._checkpoint()}"
        best = f", from the best model so far (--from {self.directory})" if self.progress.kept else ""
        fix = f"begin a new run with a lower learning rate, with `clip_norm`, or in float32{best}"
        raise TrainingError(Diagnostic("TFK110", f"{trouble}; {where}", fix)) from None

    def _owes_validation(self) -> bool:
        every, progress = self.trainer.recipe.validation.every_steps, self.progress
        due = progress.batch == 0 if every is None else progress.step % every == 0
        return due and progress.validated != progress.step

    def _validate(self, counts: bool) -> None:
        """Score the model, with its averaged weights where there are any, and keep it where it is among the best. `counts` says
        that patience goes down by it, which the one at the end of a run does not."""
        began, trainer, progress, processes = time.perf_counter(), self.trainer, self.progress, self.processes
        recipe, corpus = trainer.recipe, trainer.data.validation
        with trainer.validated_model() as model:
            if corpus is None:
                self._keep_model(model, float(progress.step))
                progress.validated = progress.step
                return
            nll, right = validation_nll(model, corpus, trainer.task, recipe.batching.tokens, trainer.device, processes)
            scores: dict[str, Score] = {}
            sample = None
            if recipe.data.kind == "classification":
                scores = {"accuracy": Score("accuracy", right, "share of the labels, in per cent", f"{right:.2f} %")}
            elif recipe.validation.metric != "loss":
                scores, sample = validation_scores(model, corpus, trainer.data.tokenisers, recipe, processes)
            name = recipe.validation.metric
            if name == "bleu" and recipe.validation.lowercase:
                name = "bleu_lowercase"
            score = -nll if name == "loss" else scores[name].value
            if not math.isfinite(score):
                score = -sys.float_info.max  # worse than any other, and a number that JSON has
            best = progress.best is None or score > progress.best
            self._keep_model(model, score)
        # Nothing is noted before the end, so that one that was cut off is made again.
        progress.validated, progress.stale = progress.step, 0 if best else progress.stale + counts
        if best:
            progress.best, progress.best_step = score, progress.step
        result = Validated(
            progress.step,
            progress.epoch if progress.batch else max(1, progress.epoch - 1),  # before a batch is drawn: the epoch that ended
            nll,
            {key: score.value for key, score in scores.items()},
            {key: score.signature for key, score in scores.items()},
            best,
            time.perf_counter() - began,
            sample,
        )
        self._closing = result.seconds
        self._log("validation", asdict(result))
        self._watch(lambda callback: callback.validated(result))

    def _keep_model(self, model: Model, score: float) -> None:
        """Save a model where it is among the best, and forget the one that no longer is."""
        self.progress.kept = self.processes.first(lambda: self._kept(model, score))

    def _kept(self, model: Model, score: float) -> list[tuple[float, int]]:
        progress, keep = self.progress, self.trainer.recipe.keeping.best
        kept = sorted([*progress.kept, (score, progress.step)], key=lambda each: (-each[0], each[1]))
        if (score, progress.step) in kept[:keep]:
            texts = tokeniser_texts(self.trainer.data.tokenisers)
            if self.trainer.data.labels:
                texts[LABELS] = json.dumps(self.trainer.data.labels) + "\n"
            try:
                self._check_place()
                save(model, self._model(progress.step), overwrite=True, catalogue=self.catalogue, texts=texts)
            except StoreError as reason:
                self._unwritten(reason)
                return progress.kept
        best = {"model": self._model(kept[0][1]).name, "metric": self.trainer.recipe.validation.metric, "score": kept[0][0]}
        try:
            write_whole(self.directory / "models" / BEST, json.dumps(best) + "\n")
        except StoreError as reason:
            self._unwritten(reason)
        return kept[:keep]

    def best_model(self) -> Path:
        """Where the best model is."""
        return self._model(self.progress.kept[0][1]) if self.progress.kept else self.directory

    def _model(self, step: int) -> Path:
        return self.directory / "models" / f"step-{step}"

    def _checkpoint(self) -> Path:
        return self.directory / "checkpoints" / f"step-{self.progress.step}"

    def _save(self) -> None:
        """Write a checkpoint, every process its shards where weights are sharded."""
        if self.trainer.fsdp:
            written = self._keep_checkpoint(self._write_sharded_checkpoint)
        else:
            written = self.processes.first(lambda: self._keep_checkpoint(self._write_checkpoint))
        if written:
            self._saved = self.progress.step

    def _state(self) -> dict[str, Any]:
        return {"progress": self.progress.model_dump(), "digests": self.digests, **self.trainer.state()}

    def _write_checkpoint(self) -> None:
        self._check_place()
        checkpoint.write_checkpoint(self._checkpoint(), self.trainer.tensors(), self._state())

    def _write_sharded_checkpoint(self) -> None:
        self.processes.first(self._check_place)
        checkpoint.write_sharded_checkpoint(self._checkpoint(), self.trainer.tensors(), self._state(), self.processes)

    def _keep_checkpoint(self, write: Callable[[], None]) -> bool:
        """Write one and remove those that are too many, and later ones, which `--earlier` has passed over; gives whether that
        worked. Where it fails, training goes on and the next one is tried: what was learnt is in memory."""
        try:
            write()
        except StoreError as reason:
            self._unwritten(reason)
            return False
        self.unsaved = None
        if not self.processes.is_first:
            return True
        path = self._checkpoint()
        found = checkpoint.checkpoints_in(path.parent)
        end = found.index(path) + 1
        for old in [*found[: max(0, end - self.trainer.recipe.keeping.last)], *found[end:]]:
            remove_saved(old)
        kept = {step for _, step in self.progress.kept}  # what no checkpoint speaks of any more can go
        for step, old in saved_steps(self.directory / MODELS).items():
            if step not in kept:
                remove_saved(old)
        self._watch(lambda callback: callback.saved(self.progress.step, path))
        return True

    def _unwritten(self, reason: StoreError) -> None:
        self.unsaved = reason
        if self._removed is None:  # which ends the run, and is reported then
            self._watch(lambda callback: callback.trouble(reason.diagnostics))

    def restore(self, earlier: bool) -> None:
        """Put the trainer where the latest checkpoint stands. Raises StoreError where it cannot be read, or is another run's;
        with `earlier` the latest one that can be read is taken."""
        folder = self.directory / "checkpoints"
        found = checkpoint.checkpoints_in(folder)
        if not found:
            return  # stopped before the first one: from the beginning
        for path in reversed(found):
            try:
                tensors, state = checkpoint.read_checkpoint(path, self.trainer.model.state_dict(), self.processes)
                self.processes.each(partial(self.trainer.check, path, tensors))
                self.processes.each(partial(self.trainer.check_state, path, state))
            except StoreError as reason:
                if not earlier or path == found[0]:
                    before = ", `--earlier` goes back to the one before it" if path != found[0] else ""
                    error = StoreError([*reason.diagnostics, Diagnostic("TFK082", f"{path} cannot be used{before}")])
                    error.reported_by_other_rank = reason.reported_by_other_rank
                    raise error from None
                for callback in self.callbacks:
                    callback.trouble(reason.diagnostics)
                continue
            self.processes.first(partial(self._check_digests, path, state))
            self.trainer.restore(tensors, state)
            self.trainer.progress, self._earlier = state.progress, state.progress.seconds
            self._saved = self.progress.step
            self.progress.kept = [(score, step) for score, step in self.progress.kept if self._model(step).is_dir()]
            return

    def _check_digests(self, path: Path, state: State) -> None:
        wrong = [name for name, digest in self.digests.items() if state.digests.get(name) != digest]
        if wrong:
            message = f"{path} was written with another {' and '.join(wrong)}"
            raise StoreError(Diagnostic("TFK113", message, "go on with the files that the run began with"))
