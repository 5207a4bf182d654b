"""Checkpoints: directories, written atomically, with everything that resuming needs.

model.safetensors        the weights
optimiser.safetensors    the state of the optimiser, such as `PARAMETER/exp_avg` and `PARAMETER/step` of Adam
average.safetensors      the moving average of the weights, if there is one
shards/                  instead of these files if the weights are sharded: one file per process
state.json               progress, loss scaler, digests of the recipe, the data and the tokenisers; shapes of sharded tensors
manifest.json            size and SHA-256 of the other files
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from ..errors import Diagnostic, StoreError
from ..files import Listing, check_files, file_record, make_draft, read_header, read_model, replace_directory
from ..io.finite import check_finite
from .checkpoint_state import SHAPES, State
from .distributed.process_group import ProcessGroup
from .run_files import SHARDS, STEP_NAME, saved_steps

MODEL, OPTIMISER, AVERAGE = (f"{name}.safetensors" for name in ("model", "optimiser", "average"))
STATE, MANIFEST = "state.json", "manifest.json"
EARLIER = "training diverged before it was written; use an earlier one"
"""What to do about a checkpoint that holds NaN or infinity."""
MOMENTS = 4
"""More tensors for each weight than the three of the optimiser: a few too many are named."""
MAX_NAMED = 3
"""Files that a message names, at most."""
Tensors = Mapping[str, Tensor]


# torch.distributed.checkpoint writes and reads only shards. For whole tensors, safetensors needs one line.
def write_checkpoint(directory: Path, tensors: Mapping[str, Tensors], scalars: Mapping[str, Any]) -> None:
    """Write a checkpoint of whole tensors, by file and name, and `state.json`; an existing one is replaced. Raises StoreError
    if it cannot be written; nothing was changed then."""
    draft = _make_draft(directory)
    try:
        with _as_store_error(directory):
            for name, values in tensors.items():
                save_file({key: value.detach().contiguous() for key, value in values.items()}, draft / name)
            _finish(draft, directory, scalars, {path.name: file_record(path) for path in sorted(draft.iterdir())})
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def write_sharded_checkpoint(
    directory: Path, tensors: Mapping[str, Tensors], scalars: Mapping[str, Any], processes: ProcessGroup
) -> None:
    """Write a checkpoint of sharded tensors; each process writes its shards. Arguments as in `write_checkpoint`. Raises
    StoreError in all processes if one cannot write; nothing was changed then."""
    from .distributed.sharded_checkpoint import write_shards

    draft = processes.run_on_first(lambda: _make_draft(directory))
    try:
        write_shards(draft / SHARDS, tensors, processes)

        def file_names() -> list[str]:
            with _as_store_error(directory):
                return sorted(f"{SHARDS}/{path.name}" for path in (draft / SHARDS).iterdir())

        names = processes.run_on_first(file_names)[processes.rank :: processes.count]

        def own_records() -> dict[str, Any]:
            with _as_store_error(directory):
                return {name: file_record(draft / name) for name in names}

        by_process = processes.all_gather(processes.run_on_all(own_records))
        records = {name: record for process_records in by_process for name, record in process_records.items()}
        shapes = {file: {name: list(value.shape) for name, value in values.items()} for file, values in tensors.items()}

        def finish() -> None:
            with _as_store_error(directory):
                _finish(draft, directory, {**scalars, SHAPES: shapes}, records)

        processes.run_on_first(finish)
    finally:
        if processes.is_first:
            shutil.rmtree(draft, ignore_errors=True)


def _make_draft(directory: Path) -> Path:
    with _as_store_error(directory):
        directory.parent.mkdir(exist_ok=True)  # not its parents: the directory of a removed run must not reappear
        return make_draft(directory)


def _finish(draft: Path, directory: Path, scalars: Mapping[str, Any], records: Mapping[str, Any]) -> None:
    """Add the state and the manifest, and rename the draft."""
    (draft / STATE).write_text(json.dumps(scalars, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    records = {**records, STATE: file_record(draft / STATE)}
    (draft / MANIFEST).write_text(json.dumps(records, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    shards = {f"{SHARDS}/{path.name}" for path in (directory / SHARDS).glob("*.safetensors")}
    replace_directory(draft, directory, {MODEL, OPTIMISER, AVERAGE, STATE, MANIFEST} | shards)


@contextmanager
def _as_store_error(directory: Path) -> Iterator[None]:
    """Raises StoreError if a checkpoint cannot be written."""
    try:
        yield
    except (OSError, SafetensorError, RuntimeError) as reason:
        text = getattr(reason, "strerror", None) or str(reason)
        raise StoreError(Diagnostic("TFK081", f"{directory} could not be written: {text}", "nothing was changed")) from None


def read_checkpoint(
    directory: Path, like: Tensors | None = None, processes: ProcessGroup | None = None
) -> tuple[dict[str, dict[str, Tensor]], State]:
    """Read a checkpoint: tensors by file and name, and the state. Each process reads only its shards of tensors that are
    sharded in the model, whose weights `like` are. Raises StoreError if a file is missing, cut off or altered; or a tensor, of
    the weights, their average or the optimiser, holds NaN or infinity."""
    processes = processes or ProcessGroup()
    state, sharded = processes.run_on_first(lambda: _checked(directory))
    if sharded:
        from .distributed.ddp_fsdp import own_part
        from .distributed.sharded_checkpoint import read_shards

        tensors = read_shards(directory / SHARDS, state.tensors or {}, like or {}, processes)
        parts = {f"{file}: {name}": own_part(tensor) for file, named in tensors.items() for name, tensor in named.items()}
        processes.run_on_all(lambda: check_finite(directory / SHARDS, parts, EARLIER))
        return tensors, state
    return processes.run_on_all(lambda: _tensors(directory, like)), state


def _check_count(path: Path, like: Tensors) -> None:
    """Raises StoreError for a file with more tensors than a checkpoint of a model with these weights can have: a library reads
    each of them. Only the header is read, up to the largest size of that of the optimiser."""
    most = MOMENTS * len(like)
    count = len(read_header(path, (1 << 16) + MOMENTS * sum(6 * (len(name) + 16) + 256 for name in like)))
    if count > most:
        message = f"{path} has {count:,} tensors, and a checkpoint of {len(like):,} weights has at most {most:,}"
        raise StoreError(Diagnostic("TFK082", message, "it was altered"))


def _tensors(directory: Path, like: Tensors | None) -> dict[str, dict[str, Tensor]]:
    if like is not None:
        for path in directory.glob("*.safetensors"):
            _check_count(path, like)
    try:
        by_file = {path.name: load_file(path) for path in directory.glob("*.safetensors")}
    except (OSError, SafetensorError) as reason:
        raise StoreError(Diagnostic("TFK082", f"{directory} cannot be read: {reason}")) from None
    for name, tensors in by_file.items():
        check_finite(directory / name, tensors, EARLIER)
    return by_file


def _checked(directory: Path) -> tuple[State, bool]:
    """The state, after comparing all files with the manifest, and whether the tensors are sharded."""
    manifest = read_model(directory / MANIFEST, Listing).root
    sharded = any(name.startswith(f"{SHARDS}/") for name in manifest)
    if STATE not in manifest or not (manifest.keys() >= {MODEL, OPTIMISER} or sharded):
        raise StoreError(
            Diagnostic("TFK082", f"{directory / MANIFEST} does not list the files of a checkpoint", "it was altered")
        )
    check_files(directory / MANIFEST, manifest, folders=(SHARDS,))
    paths = [*directory.glob("*.safetensors"), *(directory / SHARDS).glob("*.safetensors")]
    if others := sorted({str(path.relative_to(directory)) for path in paths} - manifest.keys()):
        unlisted = ", ".join(others[:MAX_NAMED]) + (f" and {len(others) - MAX_NAMED:,} more" if others[MAX_NAMED:] else "")
        message = f"{directory / MANIFEST} does not list {unlisted}"
        raise StoreError(Diagnostic("TFK082", message, "remove files that do not belong to the checkpoint"))
    state = read_model(directory / STATE, State)
    if sharded and not (state.tensors and state.tensors.keys() >= {MODEL, OPTIMISER}):
        message = f"{directory / STATE} does not list the tensors of the shards with their shapes"
        raise StoreError(Diagnostic("TFK082", message, "it was altered"))
    named = STEP_NAME.fullmatch(directory.name)
    if named and int(named[1]) != state.progress.step:
        message = f"{directory / STATE} is that of step {state.progress.step}, not of {directory.name}"
        raise StoreError(Diagnostic("TFK082", message, "restore the name of the directory"))
    return state, sharded


def checkpoints_in(directory: Path) -> list[Path]:
    """The checkpoints in a folder, the latest last."""
    return list(saved_steps(directory).values())
