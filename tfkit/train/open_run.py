"""Opens a prepared run: reads its files, builds its model, and assembles the trainer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from ..builder import build
from ..catalogue import Catalogue
from ..data import KINDS, TextTokeniser, changes_of_files, read_data, read_facts, read_tokenisers, roles_of
from ..errors import Diagnostic, InputError
from ..recipe import Recipe
from ..spec import load_spec
from .best_models import BestModels
from .callbacks import Callback, CallbackList
from .checkpoint import checkpoints_in
from .checkpointer import Checkpointer
from .clock import RunClock
from .digests import PRETRAINED, check_digests, checked_file_digests, digests_of, read_digests
from .distributed.process_group import ProcessGroup
from .log_writer import LogWriter
from .pretrained import read_pretrained
from .run_files import CHECKPOINTS, DATA, DIGESTS, SPEC
from .run_output import RunOutput
from .step import TrainStep
from .trainer import Trainer
from .validation import Validator


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
    validator = Validator(step, build_model, best_models)
    if files and (
        changed := processes.run_on_first(
            lambda: changes_of_files(recipe, read_facts(directory / DATA).sources, directory / DATA)
        )
    ):
        callbacks.notify(lambda callback: callback.on_warning(tuple(changed)))
    return Trainer(step, output, best_models, checkpointer, validator, RunClock(session.start, processes), report)


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
