"""Starts a training run, or resumes one.

recipe = tfkit.load_recipe("specs/recipes/translate-small.yaml", ["data.source=train.en", "data.target=train.de"])
tfkit.train.train(recipe, "runs/en-de")
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..builder import build
from ..catalogue import Catalogue, load_catalogue
from ..data import KINDS, TextTokeniser, changes_of_files, read_data, read_facts, read_tokenisers, roles_of
from ..data.sources import VECTORS
from ..errors import Diagnostic, InputError, StoreError
from ..recipe import Recipe, without_smoothing
from ..spec import load_spec
from .callbacks import Callback, CallbackList, Progress
from .captured import check_captured
from .checkpoint import checkpoints_in
from .checkpointer import BestModels, Checkpointer
from .compiled import check_compiler
from .digests import PRETRAINED, check_digests, checked_file_digests, digests_of, read_digests
from .distributed.process_group import ProcessGroup, join_processes
from .fit_spec import check_sharded_sampling, fitted_length, positions_in
from .log import LogWriter, cut_log
from .lora import Adapters, add_adapters
from .preparation import check_start, finish_preparation, prepare_run
from .pretrained import read_pretrained
from .rate_finder import RateSweep, sweep, sweeping
from .run_directory import RunOutput, new_run, old_run, own_place
from .run_files import CHECKPOINTS, DATA, DIGESTS, LOG, SPEC
from .run_recipe import check_processes, read_recipe, write_recipe
from .step import TrainStep
from .trainer import RunClock, Trainer
from .validation import Validator, check_translations
from .vectors import load_vectors


@dataclass(frozen=True)
class Session:
    """The arguments of `train` and `resume`, with the processes that take part."""

    directory: Path
    processes: ProcessGroup
    device: torch.device
    backend: Any
    fsdp: bool
    callbacks: Sequence[Callback]
    catalogue: Catalogue
    start: float


def open_run(session: Session, recipe: Recipe, digests: Mapping[str, str] | None) -> Trainer:
    """The trainer of a prepared run, at its first step. Without `digests` the files are compared with those of the run."""
    directory, processes, catalogue = session.directory, session.processes, session.catalogue
    _check_shared(session)
    files = {} if digests else processes.run_on_first(lambda: checked_file_digests(directory))
    data = processes.run_on_all(lambda: read_data(recipe, directory / DATA, _tokenisers(recipe, directory)))
    spec = processes.run_on_all(lambda: load_spec(directory / SPEC, catalogue))
    build_model = partial(build, spec, catalogue, device=session.device, seed=recipe.seed, backend=session.backend)
    model = processes.run_on_all(build_model)
    roles = processes.run_on_all(lambda: roles_of(model.plan, recipe.data.kind))
    first_step = processes.run_on_first(lambda: not checkpoints_in(directory / CHECKPOINTS))
    starts = first_step or recipe.lora is not None  # the weights below adapters are those of the pretrained model
    pretrained = processes.run_on_all(lambda: read_pretrained(recipe, roles, catalogue)) if starts else None
    if digests is None:
        written = processes.run_on_all(lambda: read_digests(directory))
        digests = digests_of(recipe, data, files, pretrained)
        if pretrained is None and PRETRAINED in written:  # they were loaded before the first checkpoint
            digests[PRETRAINED] = written[PRETRAINED]
        processes.run_on_all(partial(check_digests, directory, written, digests))
    report = None
    changed = processes.run_on_first(partial(_changes, recipe, directory, first_step)) if files else []
    if pretrained is not None:
        load_into = partial(pretrained.load_into, model, recipe, roles, data.labels, data.tokenisers)
        report = processes.run_on_all(load_into)
    load_words = partial(load_vectors, model, recipe, roles, data.tokenisers)
    vectors = processes.run_on_all(load_words) if first_step and recipe.vectors is not None else ()
    adapters = None
    if report is not None and pretrained is not None and recipe.lora is not None:
        adapters = Adapters(add_adapters(model, recipe, report.names), pretrained.place)
    step = TrainStep(model, recipe, data, processes, session.fsdp)
    callbacks = CallbackList(session.callbacks if processes.is_first else ())
    output = RunOutput(directory, callbacks)
    if processes.is_first:
        callbacks.callbacks = (LogWriter(output), *callbacks.callbacks)
    best_models = BestModels(step, output, catalogue, adapters)
    checkpointer = Checkpointer(step, output, digests, best_models)
    processes.run_on_all(lambda: check_translations(model, data.tokenisers, recipe))
    validator, clock = Validator(step, build_model, best_models), RunClock(session.start, processes)
    if changed:
        callbacks.notify(lambda callback: callback.on_warning(tuple(changed)))
    return Trainer(step, output, best_models, checkpointer, validator, clock, report if first_step else None, vectors)


def _changes(recipe: Recipe, directory: Path, first_step: bool) -> list[Diagnostic]:
    """Warnings of files that are not what the run began with. Raises StoreError for vectors that would be read again."""
    changed = changes_of_files(recipe, read_facts(directory / DATA).sources, directory / DATA)
    vectors = [change for change in changed if change.path.startswith(VECTORS)]
    if first_step and vectors:
        raise StoreError(vectors)
    return changed


def _tokenisers(recipe: Recipe, directory: Path) -> Mapping[str, TextTokeniser]:
    """The tokenisers of a run by column; none for images."""
    return {} if recipe.data.kind == "images" else read_tokenisers(directory, tuple(KINDS[recipe.data.kind].files))


def _check_shared(session: Session) -> None:
    """Raises InputError in all processes if one does not see the directory of the run."""
    visible = session.processes.all_gather((session.directory / DIGESTS).is_file())
    if not all(visible):
        message = f"process {visible.index(False)} does not see the directory {session.directory} that process 0 has written"
        error = InputError(Diagnostic("TFK118", message, "use a file system that all processes share"))
        error.reported_by_other_rank = not session.processes.is_first
        raise error


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
    with _new_trainer(recipe, own_place(directory), device, backend, fsdp, callbacks, catalogue, since) as (trainer, changes):
        trainer.processes.run_on_all(trainer.step.try_longest)
        trainer.processes.run_on_first(lambda: finish_preparation(trainer.recipe, trainer.output.directory))
        return _outcome(trainer, changes)


def find_rate(
    recipe: Recipe, *, device: str | torch.device = "cpu", backend: Any = None, catalogue: Catalogue | None = None
) -> tuple[RateSweep, int]:
    """Sweep learning rates with the model and the data of a recipe. Nothing is kept.

    Args:
        recipe: As in `train`; its schedule does not count.
        device: As in `train`.
        backend: As in `train`.
        catalogue: As in `train`.

    Returns:
        The losses and the suggested rate, and the width of the model.

    Raises:
        SpecError: As in `train`.
        InputError: As in `train`.
    """
    with (
        tempfile.TemporaryDirectory(prefix="tfkit-rates-") as directory,
        _new_trainer(sweeping(recipe), Path(directory) / "run", device, backend, False, (), catalogue) as (trainer, _),
    ):
        return sweep(trainer), trainer.step.width


@contextmanager
def _new_trainer(
    recipe: Recipe,
    directory: Path,
    device: str | torch.device,
    backend: Any,
    fsdp: bool,
    callbacks: Sequence[Callback],
    catalogue: Catalogue | None,
    since: float | None = None,
) -> Iterator[tuple[Trainer, list[str]]]:
    """A context with the trainer of a new run, at its first step, and the changes to the spec that the data needed."""
    start, catalogue = time.monotonic() if since is None else since, catalogue or load_catalogue()
    with join_processes(device) as (processes, place), processes.reporting_lost_process():
        processes.run_on_first(lambda: check_start(recipe, directory, processes.count, fsdp))
        if fsdp and recipe.teacher_forcing is not None:
            processes.run_on_first(lambda: check_sharded_sampling(recipe, catalogue))
        if recipe.compile:
            processes.run_on_all(lambda: check_compiler(place))
        processes.run_on_all(lambda: check_captured(recipe, place, outputs=1, linked=False, processes=processes.count))
        positions = processes.run_on_first(lambda: positions_in(recipe, catalogue, backend))
        recipe = fitted_length(processes.run_on_first(lambda: without_smoothing(recipe)), positions)
        with ExitStack() as stack:
            processes.run_on_first(lambda: stack.enter_context(new_run(directory)))
            prepared = processes.run_on_first(lambda: prepare_run(recipe, directory, catalogue, backend, positions), long=True)
            session = Session(directory, processes, place, backend, fsdp, callbacks, catalogue, start)
            yield open_run(session, recipe, prepared.digests), prepared.changes


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
        processes.run_on_all(lambda: check_captured(recipe, place, outputs=1, linked=False, processes=processes.count))
        trainer = open_run(Session(directory, processes, place, backend, fsdp, callbacks, catalogue, start), recipe, None)
        trainer.restore(earlier)
        processes.run_on_first(lambda: cut_log(directory / LOG, trainer.progress.step))
        if overrides:
            processes.run_on_first(lambda: write_recipe(recipe, directory))
        return _outcome(trainer, [])


def _outcome(trainer: Trainer, changes: list[str]) -> Outcome:
    reason = trainer.train(changes)
    return Outcome(reason, trainer.progress, trainer.best_models.path())
