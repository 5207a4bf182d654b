"""Starts a training run, or resumes one.

recipe = tfkit.load_recipe("specs/recipes/translate-small.yaml", ["data.source=train.en", "data.target=train.de"])
tfkit.train.train(recipe, "runs/en-de")
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from ..catalogue import Catalogue, load_catalogue
from ..recipe import Recipe, without_smoothing
from .callbacks import Callback, Progress
from .compiled import check_compiler
from .distributed.process_group import join_processes
from .fit_spec import check_sharded_sampling, fitted_length, positions_in
from .log import cut_log
from .open_run import Session, open_run
from .preparation import check_start, finish_preparation, prepare_run
from .run_directory import new_run, old_run, own_place
from .run_files import LOG
from .run_recipe import check_processes, read_recipe, write_recipe
from .trainer import Trainer


@dataclass(frozen=True)
class Outcome:
    """The result of a run.

    Attributes:
        reason: Why it ended.
        progress: Its progress.
        model: The directory of the best model.
    """

    reason: str
    progress: Progress
    model: Path


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
        recipe: The model, the data and the settings.
        directory: The directory of the run; new or empty.
        device: The device; with torchrun, `cuda` is one device per process.
        backend: The attention backends, as in `tfkit.build`.
        fsdp: Whether the processes shard the weights (FSDP2).
        callbacks: Receive the events of the run.
        catalogue: The catalogue of components; all installed ones by default.
        since: The `time.monotonic()` from which `stopping.max_minutes` counts; the time of this call by default.

    Returns:
        The result of the run.

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
        if fsdp and recipe.teacher_forcing is not None:
            processes.run_on_first(lambda: check_sharded_sampling(recipe, catalogue))
        if recipe.compile:
            processes.run_on_all(lambda: check_compiler(place))
        positions = processes.run_on_first(lambda: positions_in(recipe, catalogue, backend))
        recipe = fitted_length(processes.run_on_first(lambda: without_smoothing(recipe)), positions)
        with ExitStack() as stack:
            processes.run_on_first(lambda: stack.enter_context(new_run(directory)))
            prepared = processes.run_on_first(lambda: prepare_run(recipe, directory, catalogue, backend, positions), long=True)
            session = Session(directory, processes, place, backend, fsdp, callbacks, catalogue, start)
            trainer = open_run(session, recipe, prepared.digests)
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
    """Continue a run from its latest checkpoint. The final weights are those of a run without interruption.

    The number of processes and `fsdp` may differ from before; the steps then differ only in the order of summation.

    Args:
        directory: The directory of the run.
        device: As in `train`.
        backend: As in `train`.
        fsdp: As in `train`.
        overrides: Changes to the recipe in the form of `--set`: when to stop, how often to validate, what to keep.
        earlier: Whether to use an older checkpoint if the latest is damaged.
        callbacks: As in `train`.
        catalogue: As in `train`.
        since: As in `train`.

    Returns:
        The result of the run.

    Raises:
        InputError: The directory holds no run, or `overrides` change settings that affect the weights.
        StoreError: The checkpoint, or another file of the run, is damaged or belongs to another run.
        TrainingError: As in `train`.
    """
    start = time.monotonic() if since is None else since
    directory, catalogue = own_place(directory), catalogue or load_catalogue()
    with join_processes(device) as (processes, place), processes.reporting_lost_process(), ExitStack() as stack:
        processes.run_on_first(lambda: stack.enter_context(old_run(directory)))
        recipe = processes.run_on_first(lambda: read_recipe(directory, overrides))
        processes.run_on_first(lambda: check_processes(recipe, processes.count, fsdp))
        if fsdp and recipe.teacher_forcing is not None:
            processes.run_on_first(lambda: check_sharded_sampling(recipe, catalogue))
        if recipe.compile:
            processes.run_on_all(lambda: check_compiler(place))
        trainer = open_run(Session(directory, processes, place, backend, fsdp, callbacks, catalogue, start), recipe, None)
        trainer.restore(earlier)
        processes.run_on_first(lambda: cut_log(directory / LOG, trainer.progress.step))
        if overrides:
            processes.run_on_first(lambda: write_recipe(recipe, directory))
        return _outcome(trainer, [])


def _outcome(trainer: Trainer, changes: list[str]) -> Outcome:
    reason = trainer.train(changes)
    return Outcome(reason, trainer.progress, trainer.best_models.path())
