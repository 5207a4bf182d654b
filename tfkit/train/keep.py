"""What a run keeps while it goes: checkpoints, the best models, its log; and when it stops."""

from __future__ import annotations

import json
import shutil
import time
from collections.abc import Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import save_file

from ..catalogue import Catalogue
from ..data import LABELS, tokeniser_texts
from ..errors import Fault, StoreError, TrainingError
from ..files import write_whole
from ..score import Score
from ..store import BEST, save
from . import checkpoint
from .interrupt import Interrupts
from .progress import Progress, Validated, Watcher
from .run_directory import LOG, append_log
from .trainer import NotFinite, Place, Trainer, why_stop
from .validate import validation_nll, validation_scores


class Keeper:
    """Runs a trainer and keeps what it makes in the directory of the run."""

    def __init__(
        self,
        directory: Path,
        trainer: Trainer,
        digests: Mapping[str, str],
        catalogue: Catalogue,
        watchers: Sequence[Watcher],
    ) -> None:
        self.directory, self.trainer, self.digests = directory, trainer, dict(digests)
        self.catalogue, self.watchers = catalogue, watchers
        self.unsaved: StoreError | None = None
        self._saved = -1
        self._within_step = False

    @property
    def progress(self) -> Progress:
        return self.trainer.progress

    def run(self) -> str:
        """Train until there is a reason to stop; gives it.

        Raises KeyboardInterrupt after saving, TrainingError where the loss is no number, StoreError where in the end, or when
        interrupted, nothing can be written.
        """
        recipe, progress = self.trainer.recipe, self.progress
        with Interrupts() as interrupts:
            try:
                while (reason := why_stop(recipe, progress)) is None:
                    began = time.perf_counter()
                    self._step()
                    if self._validation_is_due() and progress.validated != progress.step:
                        self._validate(counts=True)
                    progress.seconds += time.perf_counter() - began
                    if interrupts.wanted:
                        self._save()
                        raise self.unsaved or KeyboardInterrupt
                    if progress.step % recipe.keeping.every_steps == 0 and self._saved != progress.step:
                        self._save()
                if progress.validated != progress.step:
                    self._validate(counts=False)
                    self._saved = -1
            finally:  # also when interrupted, or when who watches fails: nothing that was learnt is lost
                if self._saved != progress.step and not self._within_step:
                    self._save()
        for watcher in self.watchers:
            watcher.ended(reason, self.best_model())
        if self.unsaved is not None:
            raise self.unsaved
        return reason

    def _step(self) -> None:
        """One step, told to who watches, unless the scaler left it out."""
        trainer, progress = self.trainer, self.progress
        before = trainer.place()
        self._within_step = True
        try:
            step = trainer.step()
        except NotFinite as trouble:
            raise self._told(trouble, before) from None
        if trainer.epoch_done:
            progress.epoch, progress.batch = progress.epoch + 1, 0
        self._within_step = False
        if step is None:
            return
        self._log("step", asdict(step))
        for watcher in self.watchers:
            watcher.stepped(step)

    def _log(self, kind: str, entry: dict[str, Any]) -> None:
        try:
            append_log(self.directory / LOG, {"kind": kind, **entry})
        except OSError as reason:
            self._unwritten(StoreError(Fault("TFK081", f"{self.directory / LOG} could not be written: {reason.strerror}")))

    def _told(self, trouble: NotFinite, before: Place) -> TrainingError:
        """Keep what is needed to see the step again: the state before it, and its batches."""
        self.trainer.go_back(before)
        self._within_step = False
        path = self.directory / f"not-finite-step-{trouble.step}.safetensors"
        tensors = {
            f"{number}/{name}": tensor.cpu().contiguous()
            for number, batch in enumerate(trouble.batches)
            for name, tensor in {**batch.inputs, "labels": batch.labels}.items()
        }
        self._save()
        try:
            save_file(tensors, path)
            where = f"its batches are in {path}"
        except (OSError, SafetensorError) as reason:
            where = f"its batches could not be written ({reason})"
        if self.unsaved is None:
            where += f", the state before it in {self._checkpoint()}"
        best = f", from the best model so far (--from {self.directory})" if self.progress.kept else ""
        fix = f"begin a new run with a lower learning rate, with `clip_norm`, or in float32{best}"
        return TrainingError(Fault("TFK110", f"{trouble}; {where}", fix))

    def _validation_is_due(self) -> bool:
        every = self.trainer.recipe.validation.every_steps
        return self.progress.batch == 0 if every is None else self.progress.step % every == 0

    def _validate(self, counts: bool) -> None:
        """Score the model, with its averaged weights where there are any, and keep it where it is among the best. `counts` says
        that patience goes down by it, which the one at the end of a run does not."""
        began, trainer, progress = time.perf_counter(), self.trainer, self.progress
        model, recipe, corpus = trainer.model.eval(), trainer.recipe, trainer.data.validation
        progress.validated = progress.step
        with trainer.average.used_by(model) if trainer.average is not None else nullcontext():
            if corpus is None:
                self._keep_model(float(progress.step))
                return
            nll, right = validation_nll(model, corpus, trainer.task, recipe.batching.tokens, trainer.device)
            scores: dict[str, Score] = {}
            sample = None
            if recipe.data.kind == "classification":
                scores = {"accuracy": Score("accuracy", right, "share of the labels, in per cent", f"{right:.2f} %")}
            elif recipe.validation.metric != "loss":
                scores, sample = validation_scores(model, corpus, trainer.data.tokenisers, recipe)
            name = recipe.validation.metric
            if name == "bleu" and recipe.validation.lowercase:
                name = "bleu_lowercase"
            worth = -nll if name == "loss" else scores[name].value
            best = progress.best is None or worth > progress.best
            progress.stale = 0 if best else progress.stale + counts
            if best:
                progress.best, progress.best_step = worth, progress.step
            self._keep_model(worth)
        result = Validated(
            progress.step,
            progress.epoch,
            nll,
            {key: score.value for key, score in scores.items()},
            {key: score.signature for key, score in scores.items()},
            best,
            time.perf_counter() - began,
            sample,
        )
        self._log("validation", asdict(result))
        for watcher in self.watchers:
            watcher.validated(result)

    def _keep_model(self, worth: float) -> None:
        """Save the model where it is among the best, and remove the one that no longer is."""
        progress, keep = self.progress, self.trainer.recipe.keeping.best
        kept = sorted([*progress.kept, (worth, progress.step)], key=lambda each: (-each[0], each[1]))
        if (worth, progress.step) in kept[:keep]:
            texts = tokeniser_texts(self.trainer.data.tokenisers)
            if self.trainer.data.labels:
                texts[LABELS] = json.dumps(self.trainer.data.labels) + "\n"
            try:
                save(self.trainer.model, self._model(progress.step), overwrite=True, catalogue=self.catalogue, texts=texts)
            except StoreError as reason:
                self._unwritten(reason)
                return
        progress.kept = kept[:keep]
        best = {"model": self._model(kept[0][1]).name, "metric": self.trainer.recipe.validation.metric, "worth": kept[0][0]}
        try:
            write_whole(self.directory / "models" / BEST, json.dumps(best) + "\n")
        except StoreError as reason:
            self._unwritten(reason)

    def best_model(self) -> Path:
        """Where the best model is."""
        return self._model(self.progress.kept[0][1]) if self.progress.kept else self.directory

    def _model(self, step: int) -> Path:
        return self.directory / "models" / f"step-{step}"

    def _checkpoint(self) -> Path:
        return self.directory / "checkpoints" / f"step-{self.progress.step}"

    def _save(self) -> None:
        """Write a checkpoint. Where that fails, training goes on and the next one is tried: what was learnt is in memory."""
        trainer, path = self.trainer, self._checkpoint()
        state = {"progress": asdict(self.progress), "digests": self.digests, **trainer.state()}
        try:
            checkpoint.write_checkpoint(path, trainer.tensors(), state)
        except StoreError as reason:
            self._unwritten(reason)
            return
        self.unsaved, self._saved = None, self.progress.step
        for old in checkpoint.checkpoints_in(path.parent)[: -trainer.recipe.keeping.last]:
            shutil.rmtree(old, ignore_errors=True)
        kept = {step for _, step in self.progress.kept}  # what no checkpoint speaks of any more can go
        for old in (self.directory / "models").glob("step-*"):
            if old.name[5:].isdigit() and int(old.name[5:]) not in kept:
                shutil.rmtree(old, ignore_errors=True)
        for watcher in self.watchers:
            watcher.saved(self.progress.step, path)

    def _unwritten(self, reason: StoreError) -> None:
        self.unsaved = reason
        for watcher in self.watchers:
            watcher.trouble(reason.faults)

    def restore(self, earlier: bool) -> None:
        """Put the trainer where the latest checkpoint stands. Raises StoreError where it cannot be read, or is another run's;
        with `earlier` the latest one that can be read is taken."""
        folder = self.directory / "checkpoints"
        found = checkpoint.checkpoints_in(folder)
        if not found:
            return  # stopped before the first one: from the beginning
        for path in reversed(found):
            try:
                tensors, state = checkpoint.read_checkpoint(path)
            except StoreError as reason:
                if not earlier or path == found[0]:
                    before = ", `--earlier` goes back to the one before it" if path != found[0] else ""
                    raise StoreError([*reason.faults, Fault("TFK082", f"{path} cannot be used{before}")]) from None
                for watcher in self.watchers:
                    watcher.trouble(reason.faults)
                continue
            self._check_digests(path, state)
            self.trainer.restore(tensors, state)
            self.trainer.progress = _progress(state["progress"])
            self._saved = self.progress.step
            self.progress.kept = [(worth, step) for worth, step in self.progress.kept if self._model(step).is_dir()]
            return

    def _check_digests(self, path: Path, state: Mapping[str, Any]) -> None:
        wrong = [name for name, digest in self.digests.items() if state.get("digests", {}).get(name) != digest]
        if wrong:
            message = f"{path} was written with another {' and '.join(wrong)}"
            raise StoreError(Fault("TFK113", message, "go on with the files that the run began with"))


def _progress(written: Mapping[str, Any]) -> Progress:
    return Progress(**{**written, "kept": [(worth, step) for worth, step in written["kept"]]})
