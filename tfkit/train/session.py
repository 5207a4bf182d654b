"""Start a training run, or resume one.

recipe = tfkit.load_recipe("specs/recipes/translate-small.yaml", ["data.source=train.en", "data.target=train.de"])
tfkit.train(recipe, "runs/en-de")
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..builder import build
from ..catalogue import Catalogue, load_catalogue
from ..data import KINDS, read_data, read_tokenisers, roles_of
from ..errors import Diagnostic, InputError
from ..recipe import Recipe
from ..spec import load_spec
from .best_models import BestModels
from .callbacks import Callback, CallbackList, Progress
from .checkpoint import checkpoints_in
from .checkpointer import Checkpointer
from .clock import RunClock
from .compiled import check_compiler
from .digests import PRETRAINED, check_digests, checked_file_digests, digests_of, read_digests
from .distributed.process_group import ProcessGroup, join_processes
from .fit_spec import fitted_length, positions_in
from .log import cut_log
from .log_writer import LogWriter
from .preparation import check_start, finish_preparation, prepare_run
from .pretrained import read_pretrained
from .run_directory import CHECKPOINTS, DATA, DIGESTS, LOG, SPEC, new_run, old_run, own_place
from .run_output import RunOutput
from .run_recipe import check_processes, read_recipe, write_recipe
from .step import TrainStep
from .trainer import Trainer
from .validation import Validator


@dataclass(frozen=True)
class Outcome:
    """How a run ended.

    Attributes:
        reason: Why.
        progress: How far it came.
        model: The directory of the best model.
    """

    reason: str
    progress: Progress
    model: Path


@dataclass(frozen=True)
class _Session:
    """The arguments of `train` and `resume`, with the processes that take part."""

    directory: Path
    processes: ProcessGroup
    device: torch.device
    backend: Any
    fsdp: bool
    callbacks: Sequence[Callback]
    catalogue: Catalogue
    start: float


def train(
    recipe: Recipe,
    directory: str | Path,
    *,
    device: str | torch.device = "cpu",
    backend: Any = None,
    fsdp: bool = False,
    callbacks: Sequence[Callback] = (),
    catalogue: Catalogue | None = None,
    since: float | None = None,
) -> Outcome:
    """Train a model by a recipe.

    The same recipe, data, machine and number of threads give the same weights, bit for bit. Processes that torchrun started
    together share the batches of every step; they need one file system.

    Args:
        recipe: What to train, on which data, and how.
        directory: Where to write everything; new or empty.
        device: The device; with torchrun `cuda` is one device for each process.
        backend: The attention backends, as in `tfkit.build`.
        fsdp: Whether the processes share the weights too.
        callbacks: Receive the events of the run.
        catalogue: The catalogue of components; all installed ones unless given.
        since: The `time.monotonic()` from which `stopping.max_minutes` counts; the time of this call unless given.

    Returns:
        How the run ended.

    Raises:
        SpecError: The spec is wrong.
        InputError: The recipe or the data are wrong.
        StoreError: The directory is not empty, or cannot be written.
        TrainingError: The loss is NaN or infinite, or another process is lost.
    """
    start = time.monotonic() if since is None else since
    directory, catalogue = own_place(directory), catalogue or load_catalogue()
    with join_processes(device) as (processes, place), processes.reporting_lost_process():
        processes.run_on_first(lambda: check_start(recipe, directory, processes.count, fsdp))
        if recipe.compile:
            processes.run_on_all(lambda: check_compiler(place))
        positions = processes.run_on_first(lambda: positions_in(recipe, catalogue, backend))
        recipe = fitted_length(recipe, positions)
        with ExitStack() as stack:
            processes.run_on_first(lambda: stack.enter_context(new_run(directory)))
            prepared = processes.run_on_first(lambda: prepare_run(recipe, directory, catalogue, backend, positions), long=True)
            session = _Session(directory, processes, place, backend, fsdp, callbacks, catalogue, start)
            trainer = _trainer(session, recipe, prepared.digests)
            processes.run_on_all(trainer.step.try_longest)
            processes.run_on_first(lambda: finish_preparation(recipe, directory))
            return _outcome(trainer, prepared.changes)


def resume(
    directory: str | Path,
    *,
    device: str | torch.device = "cpu",
    backend: Any = None,
    fsdp: bool = False,
    overrides: Sequence[str] = (),
    earlier: bool = False,
    callbacks: Sequence[Callback] = (),
    catalogue: Catalogue | None = None,
    since: float | None = None,
) -> Outcome:
    """Continue a run from its latest checkpoint, to the weights of a run that was never interrupted.

    The number of processes and `fsdp` may differ from before. The steps stay the same but for the order of summation.

    Args:
        directory: The directory of the run.
        device: As in `train`.
        backend: As in `train`.
        fsdp: As in `train`.
        overrides: Changes to the recipe, as `--set` writes them: when to stop, how often to validate, what to keep.
        earlier: Whether to use an older checkpoint where the latest is damaged.
        callbacks: As in `train`.
        catalogue: As in `train`.
        since: As in `train`.

    Returns:
        How the run ended.

    Raises:
        InputError: The directory holds no run, or `overrides` change what weights depend on.
        StoreError: The checkpoint, or another file of the run, is damaged or of another run.
        TrainingError: As in `train`.
    """
    start = time.monotonic() if since is None else since
    directory, catalogue = own_place(directory), catalogue or load_catalogue()
    with join_processes(device) as (processes, place), processes.reporting_lost_process(), ExitStack() as stack:
        processes.run_on_first(lambda: stack.enter_context(old_run(directory)))
        recipe = processes.run_on_first(lambda: read_recipe(directory, overrides))
        processes.run_on_first(lambda: check_processes(recipe, processes.count, fsdp))
        if recipe.compile:
            processes.run_on_all(lambda: check_compiler(place))
        trainer = _trainer(_Session(directory, processes, place, backend, fsdp, callbacks, catalogue, start), recipe, None)
        trainer.restore(earlier)
        processes.run_on_first(lambda: cut_log(directory / LOG, trainer.progress.step))
        if overrides:
            processes.run_on_first(lambda: write_recipe(recipe, directory))
        return _outcome(trainer, [])


def _trainer(session: _Session, recipe: Recipe, digests: Mapping[str, str] | None) -> Trainer:
    """The trainer of a prepared run, at its first step. Without `digests` the files are compared with those of the run."""
    directory, processes, catalogue = session.directory, session.processes, session.catalogue
    _check_shared(session)
    files = {} if digests else processes.run_on_first(lambda: checked_file_digests(directory))
    data = processes.run_on_all(
        lambda: read_data(recipe, directory / DATA, read_tokenisers(directory, tuple(KINDS[recipe.data.kind].files)))
    )
    spec = processes.run_on_all(lambda: load_spec(directory / SPEC, catalogue))
    another = partial(build, spec, catalogue, device=session.device, seed=recipe.seed, backend=session.backend)
    model = processes.run_on_all(another)
    roles = processes.run_on_all(lambda: roles_of(model.plan, recipe.data.kind))
    first_step = processes.run_on_first(lambda: not checkpoints_in(directory / CHECKPOINTS))
    pretrained = processes.run_on_all(lambda: read_pretrained(recipe, roles, catalogue)) if first_step else None
    if digests is None:
        written = processes.run_on_all(lambda: read_digests(directory))
        digests = digests_of(recipe, data, files, pretrained)
        if pretrained is None and PRETRAINED in written:  # they were loaded before the first checkpoint
            digests[PRETRAINED] = written[PRETRAINED]
        processes.run_on_all(partial(check_digests, directory, written, digests))
    report = (
        None if pretrained is None else processes.run_on_all(lambda: pretrained.load_into(model, recipe, roles, data.labels))
    )
    step = TrainStep(model, recipe, data, processes, session.fsdp)
    callbacks = CallbackList(session.callbacks if processes.is_first else ())
    output = RunOutput(directory, callbacks)
    if processes.is_first:
        callbacks.callbacks = (LogWriter(output), *callbacks.callbacks)
    best_models = BestModels(step, output, catalogue)
    checkpointer = Checkpointer(step, output, digests, best_models)
    validator = Validator(step, another, best_models)
    return Trainer(step, output, best_models, checkpointer, validator, RunClock(session.start, processes), report)


def _check_shared(session: _Session) -> None:
    """Raises InputError in all processes where one does not see the directory of the run."""
    visible = session.processes.all_gather((session.directory / DIGESTS).is_file())
    if not all(visible):
        message = f"process {visible.index(False)} does not see the directory {session.directory} that process 0 has written"
        error = InputError(Diagnostic("TFK118", message, "use a file system that all processes share"))
        error.reported_by_other_rank = not session.processes.is_first
        raise error


def _outcome(trainer: Trainer, changes: list[str]) -> Outcome:
    reason = trainer.train(changes)
    return Outcome(reason, trainer.progress, trainer.best_models.path())
