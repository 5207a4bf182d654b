"""Everything that going on needs, in a directory that appears whole or not at all.

model.safetensors        the weights
optimiser.safetensors    its moments by parameter, `NAME/exp_avg` and the like
average.safetensors      the moving average of the weights, where there is one
shards/                  instead of these, where the weights are sharded over processes: a file of each
state.json               progress, gradient scaler, digests of the recipe, the data and the tokenisers; tensors of shards
manifest.json            size and SHA-256 of the other files

Generators of random numbers have no state to keep: each batch seeds them by its place in the data.
"""

from __future__ import annotations

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..errors import Diagnostic, StoreError
from ..files import Listing, check_files, file_record, read_model
from ..io.replacing import put_in_place
from .distributed.ddp_fsdp import shard_of
from .distributed.process_group import ProcessGroup
from .run_directory import SHARDS, STEP, saved_steps
from .state import SHAPES, State

MODEL, OPTIMISER, AVERAGE = (f"{name}.safetensors" for name in ("model", "optimiser", "average"))
STATE, MANIFEST = "state.json", "manifest.json"
Tensors = Mapping[str, Tensor]


def write_checkpoint(directory: Path, tensors: Mapping[str, Tensors], state: Mapping[str, Any]) -> None:
    """Write whole tensors by file and the state, atomically. Raises StoreError, and then nothing was changed."""
    with _drafted(directory) as draft:
        for name, values in tensors.items():
            save_file({key: value.detach().contiguous() for key, value in values.items()}, draft / name)
        _finish(draft, directory, state, {path.name: file_record(path) for path in sorted(draft.iterdir())})


def write_sharded_checkpoint(
    directory: Path, tensors: Mapping[str, Tensors], state: Mapping[str, Any], processes: ProcessGroup
) -> None:
    """Write tensors of which every process has a share, each its own, and the state, atomically. Raises StoreError in all of
    them, and then nothing was changed."""
    from .distributed.sharded_checkpoint import write_shards

    draft = processes.first(lambda: _draft(directory))
    try:
        write_shards(draft / SHARDS, tensors, processes)

        def names() -> list[str]:
            with _as_store_error(directory):
                return sorted(f"{SHARDS}/{path.name}" for path in (draft / SHARDS).iterdir())

        mine = processes.first(names)[processes.rank :: processes.count]

        def seen() -> dict[str, Any]:
            with _as_store_error(directory):
                return {name: file_record(draft / name) for name in mine}

        facts = processes.gathered(processes.each(seen))
        shapes = {file: {name: list(value.shape) for name, value in values.items()} for file, values in tensors.items()}

        def finish() -> None:
            with _as_store_error(directory):
                _finish(
                    draft, directory, {**state, SHAPES: shapes}, {name: each for found in facts for name, each in found.items()}
                )

        processes.first(finish)
    finally:
        if processes.is_first:
            shutil.rmtree(draft, ignore_errors=True)


def _draft(directory: Path) -> Path:
    with _as_store_error(directory):
        directory.parent.mkdir(exist_ok=True)  # without its parents: a run that was removed does not come back as a part
        return Path(tempfile.mkdtemp(prefix=f".{directory.name}.", suffix=".draft", dir=directory.parent))


@contextmanager
def _drafted(directory: Path) -> Iterator[Path]:
    """A directory beside the final one, which goes away unless it was finished."""
    draft = _draft(directory)
    try:
        with _as_store_error(directory):
            yield draft
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def _finish(draft: Path, directory: Path, state: Mapping[str, Any], facts: Mapping[str, Any]) -> None:
    """Add the state and the manifest, and put the draft in its place."""
    (draft / STATE).write_text(json.dumps(state, indent=1) + "\n", encoding="utf-8")
    facts = {**facts, STATE: file_record(draft / STATE)}
    (draft / MANIFEST).write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    for path in [*draft.rglob("*"), draft]:
        _sync(path)
    shards = {f"{SHARDS}/{path.name}" for path in (directory / SHARDS).glob("*.safetensors")}
    put_in_place(draft, directory, {MODEL, OPTIMISER, AVERAGE, STATE, MANIFEST} | shards)
    _sync(directory.parent)


@contextmanager
def _as_store_error(directory: Path) -> Iterator[None]:
    """What keeps a checkpoint from being written, as a fault. Raises StoreError."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as reason:
        words = getattr(reason, "strerror", None) or str(reason)
        raise StoreError(Diagnostic("TFK081", f"{directory} could not be written: {words}", "nothing was changed")) from None


def read_checkpoint(
    directory: Path, like: Tensors | None = None, processes: ProcessGroup | None = None
) -> tuple[dict[str, dict[str, Tensor]], State]:
    """Tensors by file and the state. Of sharded tensors each of the `processes` reads what it needs for tensors `like` its own.
    Raises StoreError for a file that is missing, cut off or altered."""
    processes = processes or ProcessGroup()
    state, sharded = processes.first(lambda: _checked(directory))
    if sharded:
        from .distributed.sharded_checkpoint import read_shards

        return read_shards(directory / SHARDS, state.tensors or {}, like or {}, processes), state
    return processes.each(lambda: _tensors(directory)), state


def _tensors(directory: Path) -> dict[str, dict[str, Tensor]]:
    try:
        return {path.name: load_file(path) for path in directory.glob("*.safetensors")}
    except (OSError, SafetensorError) as reason:
        raise StoreError(Diagnostic("TFK082", f"{directory} cannot be read: {reason}")) from None


def _checked(directory: Path) -> tuple[State, bool]:
    """The state, once all files are as they were written, and whether the tensors are sharded."""
    manifest = read_model(directory / MANIFEST, Listing).root
    sharded = any(name.startswith(f"{SHARDS}/") for name in manifest)
    if STATE not in manifest or not (manifest.keys() >= {MODEL, OPTIMISER} or sharded):
        raise StoreError(
            Diagnostic("TFK082", f"{directory / MANIFEST} does not list the files of a checkpoint", "it was altered")
        )
    check_files(directory / MANIFEST, manifest, folders=(SHARDS,))
    if others := {str(path.relative_to(directory)) for path in directory.rglob("*.safetensors")} - manifest.keys():
        message = f"{directory / MANIFEST} does not list {', '.join(sorted(others))}"
        raise StoreError(Diagnostic("TFK082", message, "remove what is no part of the checkpoint"))
    state = read_model(directory / STATE, State)
    if sharded and not (state.tensors and state.tensors.keys() >= {MODEL, OPTIMISER}):
        message = f"{directory / STATE} does not list the tensors of the shards with their shapes"
        raise StoreError(Diagnostic("TFK082", message, "it was altered"))
    named = STEP.fullmatch(directory.name)
    if named and int(named[1]) != state.progress.step:
        message = f"{directory / STATE} is that of step {state.progress.step}, not of {directory.name}"
        raise StoreError(Diagnostic("TFK082", message, "give the directory its name back"))
    return state, sharded


def checkpoints_in(directory: Path) -> list[Path]:
    """The checkpoints of a run, the latest last."""
    return list(saved_steps(directory).values())


def optimiser_tensors(optimiser: torch.optim.Optimizer, names: Mapping[int, str]) -> dict[str, Tensor]:
    """The tensors that an optimiser keeps, by parameter; `names` by the id of the parameter."""
    return {
        f"{names[id(parameter)]}/{key}": value
        for parameter, kept in optimiser.state.items()
        for key, value in kept.items()
        if isinstance(value, Tensor)
    }


def restore_optimiser(optimiser: torch.optim.Optimizer, names: Mapping[int, str], tensors: Tensors) -> None:
    """Put back what `optimiser_tensors` gave, into memory of its own."""
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            prefix = f"{names[id(parameter)]}/"
            found = {key.removeprefix(prefix): value for key, value in tensors.items() if key.startswith(prefix)}
            optimiser.state[parameter] = {key: _own(optimiser, parameter, key, value) for key, value in found.items()}


def _own(optimiser: torch.optim.Optimizer, parameter: Tensor, key: str, value: Tensor) -> Tensor:
    """A tensor of an optimiser where it belongs: on the device of its parameter, and cut as that is."""
    if key == "step" and not _steps_on_device(optimiser):
        return value.clone()
    value = value.clone().to(parameter.device)
    return shard_of(value, parameter) if value.shape == parameter.shape else value


def _steps_on_device(optimiser: torch.optim.Optimizer) -> bool:
    return bool(optimiser.defaults.get("fused") or optimiser.defaults.get("capturable"))


def _sync(path: Path) -> None:
    number = os.open(path, os.O_RDONLY)
    try:
        os.fsync(number)
    finally:
        os.close(number)
