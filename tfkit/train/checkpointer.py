"""The checkpoints of a run: write them, remove old ones, choose the one to resume from."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from ..errors import Diagnostic, StoreError
from . import checkpoint
from .best_models import BestModels
from .callbacks import Callback
from .checkpoint_state import State
from .run_files import CHECKPOINTS, remove_saved
from .run_output import RunOutput
from .step import TrainStep


class Checkpointer:
    """Writes the state of a run into `checkpoints/step-N` and keeps the last `keeping.last`.

    If writing fails, training continues: the state is in memory, and the next checkpoint is tried.

    Args:
        step: Holds the state.
        output: The directory of the run.
        digests: The digests of the inputs of the run. A checkpoint of another run is refused.
        best_models: The saved models that the checkpoints refer to.
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
        found = checkpoint.checkpoints_in(self.folder)
        end = found.index(self.path) + 1
        for old in [*found[: max(0, end - self.step.recipe.keeping.last)], *found[end:]]:
            remove_saved(old)
        self.best_models.remove_others()

    def restore(self, earlier: bool) -> None:
        """Restore the state from the latest checkpoint, if there is one.

        Args:
            earlier: Whether to use the latest readable checkpoint if later ones are damaged.

        Raises:
            StoreError: The checkpoint is damaged, or belongs to another run.
        """
        found = checkpoint.checkpoints_in(self.folder)
        for path in reversed(found):
            try:
                tensors, state = checkpoint.read_checkpoint(path, self.state.model.state_dict(), self.processes)
                self.processes.run_on_all(partial(self.state.check_tensors, path, tensors))
                self.processes.run_on_all(partial(self.state.check_scalars, path, state, tensors, self.step.batches))
            except StoreError as reason:
                if not earlier or path == found[0]:
                    before = "; `--earlier` uses the one before it" if path != found[0] else ""
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
