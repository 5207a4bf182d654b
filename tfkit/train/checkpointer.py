"""The checkpoints of a run: write them, remove old ones, choose the one to resume from."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from ..catalogue import Catalogue
from ..data import image_texts, label_texts, span_texts, tokeniser_texts
from ..errors import Diagnostic, StoreError
from ..files import write_whole
from ..io import save
from ..io.layout import BEST
from ..nn.model import Model
from . import checkpoint
from .callbacks import Callback
from .checkpoint_state import State
from .fit_spec import learnt_alignment
from .lora import Adapters
from .run_directory import RunOutput
from .run_files import CHECKPOINTS, MODELS, remove_saved, saved_steps
from .step import TrainStep

MAX_TRIED = 100
"""The most checkpoints that `--earlier` tries."""


class BestModels:
    """The `keeping.best` best models of a run; `progress.best_models` lists them. With `adapters`, only these are saved."""

    def __init__(self, step: TrainStep, output: RunOutput, catalogue: Catalogue, adapters: Adapters | None = None) -> None:
        self.step, self.output, self.catalogue, self.adapters = step, output, catalogue, adapters
        self.folder = output.directory / MODELS

    def add(self, model: Model, score: float) -> None:
        """Save a model if its score is among the best. The first process writes."""
        self.step.progress.best_models = self.step.processes.run_on_first(lambda: self._add(model, score))

    def _add(self, model: Model, score: float) -> list[tuple[float, int]]:
        progress, recipe = self.step.progress, self.step.recipe
        ranked = sorted([*progress.best_models, (score, progress.step)], key=lambda scored: (-scored[0], scored[1]))
        best = ranked[: recipe.keeping.best]
        if (score, progress.step) in best:
            data = self.step.data
            texts = tokeniser_texts(data.tokenisers) | image_texts(recipe) | span_texts(data.spans)
            texts |= label_texts(data.labels, recipe.data.kind == "pairs")
            texts |= learnt_alignment(recipe, self.step.alignment)
            try:
                self.output.check()
                if self.adapters is not None:
                    self.adapters.save(model, self._path(progress.step), self.catalogue, texts)
                else:
                    save(model, self._path(progress.step), overwrite=True, catalogue=self.catalogue, texts=texts)
            except StoreError as reason:
                self.output.failed(reason)
                return progress.best_models
        entry = {"model": self._path(ranked[0][1]).name, "metric": recipe.validation.metric, "score": ranked[0][0]}
        try:
            write_whole(self.folder / BEST, json.dumps(entry, allow_nan=False) + "\n")
        except StoreError as reason:
            self.output.failed(reason)
        return best

    def path(self) -> Path:
        """The directory of the best model, or that of the run if none is saved."""
        best = self.step.progress.best_models
        return self._path(best[0][1]) if best else self.output.directory

    def _path(self, step: int) -> Path:
        return self.folder / f"step-{step}"

    def forget_missing(self) -> None:
        """Drop models without a directory from the list."""
        progress = self.step.progress
        progress.best_models = [(score, step) for score, step in progress.best_models if self._path(step).is_dir()]

    def remove_others(self) -> None:
        """Remove the models that are no longer listed. Call it only after a checkpoint with the new list: resuming from an
        older checkpoint needs the models of the older list."""
        listed = {step for _, step in self.step.progress.best_models}
        for step, path in saved_steps(self.folder).items():
            if step not in listed:
                remove_saved(path)


class Checkpointer:
    """Writes the state of a run into `checkpoints/step-N` and keeps the last `keeping.last`, with the models that they refer
    to. A checkpoint of a run with other digests of its inputs is refused.

    If writing fails, training continues: the state is in memory, and the next checkpoint is tried.
    """

    def __init__(self, step: TrainStep, output: RunOutput, digests: Mapping[str, str], best_models: BestModels) -> None:
        self.step, self.state, self.processes = step, step.state, step.processes
        self.output, self.digests, self.best_models = output, dict(digests), best_models
        self.folder = output.directory / CHECKPOINTS
        self.saved_step = -1

    @property
    def is_current(self) -> bool:
        """Whether the current step is saved."""
        return self.saved_step == self.state.progress.step

    @property
    def path(self) -> Path:
        """The checkpoint of the current step."""
        return self.folder / f"step-{self.state.progress.step}"

    def save(self) -> None:
        """Write a checkpoint. With FSDP every process writes its shards, otherwise the first one writes."""
        sharded = self.state.fsdp
        if self._save(self._write_shards) if sharded else self.processes.run_on_first(self.save_alone):
            self.saved_step = self.state.progress.step

    def save_alone(self) -> bool:
        """Write a checkpoint from this process, without the others. Returns whether it was written."""
        return self._save(self._write)

    def _write(self) -> None:
        self.output.check()
        checkpoint.write_checkpoint(self.path, self.state.tensors(), {**self.state.scalars(), "digests": self.digests})

    def _write_shards(self) -> None:
        self.processes.run_on_first(self.output.check)
        scalars = {**self.state.scalars(), "digests": self.digests}
        checkpoint.write_sharded_checkpoint(self.path, self.state.tensors(), scalars, self.processes)

    def _save(self, write: Callable[[], None]) -> bool:
        try:
            write()
        except StoreError as reason:
            self.output.failed(reason)
            return False
        self.output.unsaved = None
        if self.processes.is_first:
            self._remove_old()
            step, path = self.state.progress.step, self.path
            self.output.callbacks.notify(lambda callback: callback.on_checkpoint(step, path))
        return True

    def _remove_old(self) -> None:
        """Remove all but the last checkpoints, and later ones, which `--earlier` skipped."""
        checkpoints = checkpoint.checkpoints_in(self.folder)
        end = checkpoints.index(self.path) + 1
        for old in [*checkpoints[: max(0, end - self.step.recipe.keeping.last)], *checkpoints[end:]]:
            remove_saved(old)
        self.best_models.remove_others()

    def restore(self, earlier: bool) -> None:
        """Restore the state from the latest checkpoint, if there is one; with `earlier` from the latest readable one of the
        last `MAX_TRIED`. Raises StoreError if it is damaged, or belongs to another run."""
        checkpoints = checkpoint.checkpoints_in(self.folder)[-MAX_TRIED:]
        for path in reversed(checkpoints):
            try:
                tensors, state = checkpoint.read_checkpoint(path, self.state.model.state_dict(), self.processes)
                self.processes.run_on_all(partial(self.state.check_tensors, path, tensors))
                self.processes.run_on_all(partial(self.state.check_scalars, path, state, tensors, self.step.batches))
            except StoreError as reason:
                if not earlier or path == checkpoints[0]:
                    before = "; `--earlier` uses the one before it" if path != checkpoints[0] else ""
                    error = StoreError([*reason.diagnostics, Diagnostic("TFK082", f"{path} cannot be used{before}")])
                    error.reported_by_other_rank = reason.reported_by_other_rank
                    raise error from None
                self.output.callbacks.notify(partial(_report, reason))
                continue
            self.processes.run_on_first(partial(self._check_digests, path, state))
            self.state.restore(tensors, state)
            self.saved_step = state.progress.step
            return

    def _check_digests(self, path: Path, state: State) -> None:
        other = [name for name, digest in self.digests.items() if state.digests.get(name) != digest]
        if other:
            message = f"{path} was written with another {' and '.join(other)}"
            raise StoreError(Diagnostic("TFK113", message, "resume with the files of the first start"))


def _report(reason: StoreError, callback: Callback) -> None:
    callback.on_warning(reason.diagnostics)
