"""Where a run keeps what it makes, and what tfkit may read and remove there.

recipe.yaml              the recipe, everything filled in; written last, so that a directory without it holds no run
spec.yaml                the spec, with the sizes of the vocabularies
source.json target.json  the tokenisers; one file where the vocabulary is joint: tokeniser.json
digests.json             what the run began with
data/                    the corpora of ids
checkpoints/step-N       all that going on needs
models/step-N            the best models by validation, as `tfkit build` saves them, with their tokenisers
models/best.json         the name of the best of them
tensorboard/             events for TensorBoard
log.jsonl                every step and validation, one JSON object a line
curve.html               the curve of the training
run.lock                 locked by the process that works on the run, which run.lock.json names
unfinished-preparation   is there until recipe.yaml is

Inside there are regular files and directories only. No link is followed, and nothing is removed but files of known names.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ..data import FACTS, LABELS, TOKENISER_FILES, TRAIN, VALIDATION
from ..errors import Diagnostic, InputError, StoreError
from ..files import write_whole
from ..io.layout import PLAN, VERSIONS, WEIGHTS
from .lock import HOLDER, LOCK, held

RECIPE, SPEC, DIGESTS, LOG, CURVE = "recipe.yaml", "spec.yaml", "digests.json", "log.jsonl", "curve.html"
DATA, CHECKPOINTS, MODELS, EVENTS = "data", "checkpoints", "models", "tensorboard"
FOLDERS = (DATA, CHECKPOINTS, MODELS, EVENTS)
UNFINISHED = "unfinished-preparation"
_NOTE = (
    f"`tfkit train` has begun to prepare this run and not finished. `tfkit train ... -o` starts over; then {RECIPE} appears.\n"
)
PREPARED = (SPEC, DIGESTS, *TOKENISER_FILES)
"""The files of a run, beside those in `data`, that its preparation writes."""
CORPORA = (TRAIN, VALIDATION, FACTS, *(str(Path(name).with_suffix(".draft")) for name in (TRAIN, VALIDATION)))
FILES = (*PREPARED, RECIPE, LOG, CURVE, LOCK, HOLDER, UNFINISHED)
SHARDS = "shards"
SAVED = (
    *("model.safetensors", "optimiser.safetensors", "average.safetensors", "state.json", "manifest.json"),
    *(SPEC, WEIGHTS, PLAN, VERSIONS, LABELS, *TOKENISER_FILES),
)
"""The files of a checkpoint and of a saved model; a checkpoint may have a folder of shards too."""
STEP = re.compile(r"step-(0|[1-9][0-9]{0,14})")
_BATCHES = re.compile(r"not-finite-step-[0-9]+\.safetensors")
_DRAFT = re.compile(r"\.(step-[0-9]+)\.\w+\.(draft|old)", re.ASCII)
_WHOLE = re.compile(r"\.(.+)\.[a-z0-9_]{8}", re.ASCII)
"""The draft of `write_whole`, or another one of Python's `tempfile`."""
_FEW = 3


def own_place(directory: str | Path) -> Path:
    """The directory of a run as the user names it; where that is a link, what it leads to."""
    path = Path(directory)
    try:
        return path.resolve(strict=True) if path.is_symlink() else path
    except (OSError, RuntimeError):  # RuntimeError: a link to itself, before Python 3.13
        raise StoreError(Diagnostic("TFK080", f"{path} is a link that leads nowhere", "name a directory")) from None


def identity(directory: Path) -> tuple[int, int] | None:
    """Which directory is at this place, None where there is none."""
    try:
        found = directory.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def check_new(directory: Path) -> None:
    """Raises StoreError for a directory that holds anything but what an unfinished preparation has left."""
    if not directory.exists():
        return
    if not directory.is_dir():
        raise StoreError(Diagnostic("TFK080", f"{directory} exists and is no directory", "name another directory"))
    others = _foreign(directory)
    if (directory / RECIPE).is_file():  # asked last: another process may just have finished its preparation
        raise StoreError(Diagnostic("TFK080", f"{directory} exists and holds a run", "`--resume` goes on with it"))
    if others:
        shown = ", ".join(others[:_FEW]) + (f" and {len(others) - _FEW} more" if len(others) > _FEW else "")
        raise StoreError(Diagnostic("TFK080", f"{directory} exists and is not empty: {shown}", "name another directory"))


def is_unfinished(directory: Path) -> bool:
    """Whether a preparation began in a directory that has not finished."""
    return (directory / UNFINISHED).is_file() and not os.path.lexists(directory / RECIPE)


@contextmanager
def new_run(directory: Path) -> Iterator[None]:
    """Hold a directory, made where it is missing, for a run that begins; what an unfinished preparation has left goes. Without
    a recipe in the end what was written goes, and the directory where it was made.

    Raises StoreError where the directory cannot be written or holds something else, InputError where another process holds it.
    """
    check_new(directory)
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        made = True
        try:
            directory.mkdir()
        except FileExistsError:
            made = False
    except OSError as reason:
        raise StoreError(Diagnostic("TFK081", f"{directory} cannot be made: {reason.strerror}")) from None
    with held(directory):
        check_new(directory)
        own = identity(directory)
        try:
            _remove_preparation(directory)
            write_whole(directory / UNFINISHED, _NOTE)
            yield
        finally:
            if identity(directory) == own and not os.path.lexists(directory / RECIPE):
                _remove_preparation(directory)
                for name in (UNFINISHED, HOLDER, LOCK):
                    _unlink(directory / name)
                if made:
                    _rmdir(directory)


def end_preparation(directory: Path) -> None:
    """Remove the note that the preparation is unfinished, once the recipe is written."""
    _unlink(directory / UNFINISHED)


@contextmanager
def old_run(directory: Path) -> Iterator[None]:
    """Hold the directory of a run that goes on. Raises InputError where there is no run, or another process holds it, and
    StoreError for links in it."""
    if not (directory / RECIPE).is_file():
        if is_unfinished(directory):
            message = f"the preparation of {directory} was cut off before its first step: there is no {RECIPE}"
            raise InputError(Diagnostic("TFK111", message, f"start over with `tfkit train RECIPE -o {directory}`"))
        message = f"{directory} holds no run that could go on: there is no {RECIPE}"
        raise InputError(Diagnostic("TFK111", message, "name the directory that `tfkit train -o` wrote"))
    check_inside(directory)
    with held(directory):
        end_preparation(directory)  # the process may have been killed just after it wrote the recipe
        _sweep(directory)
        yield


def check_inside(directory: Path) -> None:
    """Raises StoreError where, in what tfkit reads and writes in a run, something is neither a regular file nor a directory, or
    the one in place of the other."""
    diagnostics: list[Diagnostic] = []
    for root, folders, files in os.walk(directory):
        top = Path(root) == directory
        if top:
            folders[:] = [name for name in folders if name in FOLDERS or _is_file_of_run(name)]
            files = [name for name in files if name in FOLDERS or _is_file_of_run(name)]
        for name in [*folders, *files]:
            wanted = "a directory" if (name in FOLDERS if top else name in folders) else "a regular file"
            if diagnostic := _misplaced(Path(root) / name, wanted):
                diagnostics.append(diagnostic)
        if len(diagnostics) >= _FEW:
            break
    if diagnostics:
        raise StoreError(diagnostics[:_FEW])


def _misplaced(path: Path, wanted: str) -> Diagnostic | None:
    try:
        mode = path.lstat().st_mode
    except OSError:
        return None  # gone meanwhile
    if stat.S_ISLNK(mode):
        return Diagnostic(
            "TFK082", f"{path} is a link, and no link is followed inside a run", "put what it leads to in its place"
        )
    if not (stat.S_ISDIR(mode) if wanted == "a directory" else stat.S_ISREG(mode)):
        return Diagnostic("TFK082", f"{path} is not {wanted}", "put what the run had there in its place, or remove it")
    return None


def _is_file_of_run(name: str) -> bool:
    return name in FILES or _BATCHES.fullmatch(name) is not None or _is_whole(name, FILES)


def _is_whole(name: str, names: tuple[str, ...]) -> bool:
    """Whether this is a draft of one of the files."""
    found = _WHOLE.fullmatch(name)
    return found is not None and found[1] in names


def _foreign(directory: Path) -> list[str]:
    """What is in a directory and not of a preparation. Another process may be at work there: what is gone meanwhile is not."""
    there = _entries(directory)
    begun = (directory / UNFINISHED).is_file()
    names = (*(PREPARED if begun else ()), RECIPE, LOCK, HOLDER, UNFINISHED)
    found = []
    for path in there:
        if path.name == DATA and begun and _is_folder(path):
            found += [f"{DATA}/{each.name}" for each in _entries(path) if not _is_own(each, CORPORA)]
        elif not _is_own(path, names):
            found.append(path.name)
    return sorted(found)


def _is_own(path: Path, names: tuple[str, ...]) -> bool:
    """Whether a path is a regular file of one of the names, or gone."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return True
    return (path.name in names or _is_whole(path.name, names)) and stat.S_ISREG(mode)


def _remove_preparation(directory: Path) -> None:
    """Remove what a preparation writes, as far as it is there, but the note that it is unfinished."""
    if not (directory / DATA).is_symlink():
        _remove_files(directory / DATA, CORPORA)
        _rmdir(directory / DATA)
    _remove_files(directory, PREPARED)
    for path in _entries(directory):
        if _is_whole(path.name, (RECIPE, HOLDER, UNFINISHED)):
            _unlink(path)


def remove_saved(directory: Path) -> None:
    """Remove a checkpoint or a saved model: the files that such a one has, and the directory if nothing else is in it."""
    if directory.is_symlink():
        return
    if not (directory / SHARDS).is_symlink():
        for path in _entries(directory / SHARDS):
            if path.suffix == ".safetensors":
                _unlink(path)
        _rmdir(directory / SHARDS)
    _remove_files(directory, SAVED)
    _rmdir(directory)


def saved_steps(folder: Path) -> dict[int, Path]:
    """The directories `step-N` in a folder by N, ascending."""
    found = {int(match[1]): path for path in _entries(folder) if (match := STEP.fullmatch(path.name)) and _is_folder(path)}
    return dict(sorted(found.items()))


def _sweep(directory: Path) -> None:
    """Remove the drafts of a process that was killed while it wrote; what it had put aside to replace comes back."""
    for folder in (directory / CHECKPOINTS, directory / MODELS):
        drafts = [(path, match) for path in _entries(folder) if (match := _DRAFT.fullmatch(path.name)) and _is_folder(path)]
        for path, match in drafts:
            kept = path / match[1]
            if match[2] == "old" and _is_folder(kept):
                if os.path.lexists(folder / match[1]):
                    remove_saved(kept)
                else:
                    with suppress(OSError):
                        kept.rename(folder / match[1])
            remove_saved(path)


def _is_folder(path: Path) -> bool:
    return path.is_dir() and not path.is_symlink()


def _entries(folder: Path) -> list[Path]:
    try:
        return list(folder.iterdir())
    except OSError:
        return []


def _remove_files(folder: Path, names: tuple[str, ...]) -> None:
    for path in _entries(folder):
        if _is_own(path, names):
            _unlink(path)


def _unlink(path: Path) -> None:
    with suppress(OSError):
        path.unlink()


def _rmdir(path: Path) -> None:
    with suppress(OSError):
        path.rmdir()
