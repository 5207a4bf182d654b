"""A built model in a directory, and back: no pickle, nothing half-written, the same numbers bit for bit.

spec.yaml           the resolved spec
model.safetensors   the weights
plan.json           the backends asked for at each site, and the table of what is chosen on the device it was built for
versions.json       versions of tfkit, its contract, torch and the plugins; size and SHA-256 of the other files
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import tempfile
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any, Literal

import torch
from pydantic import ConfigDict, RootModel, field_validator
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from .builder import build
from .catalogue import Catalogue, load_catalogue
from .errors import Fault, StoreError
from .files import (
    FileFacts,
    FileModel,
    check_digest,
    check_header,
    check_removable,
    check_sizes,
    child,
    compare_tensors,
    read_bytes,
    read_model,
    remove_written,
    umask,
)
from .files import check_files as check_files
from .files import file_facts as file_facts
from .graph import Target, graph_of, plan
from .nn.model import Model
from .slots.options import CONTRACT
from .spec import ModelSpec, parse_spec, to_yaml
from .spec.marked import Faults
from .spec.reader import read_text

FORMAT = 1
SPEC, WEIGHTS, PLAN, VERSIONS = "spec.yaml", "model.safetensors", "plan.json", "versions.json"
BEST = "best.json"
"""Beside several models, the file that names the best one."""
LARGEST_TEXTS = 256 << 20
"""So many bytes the files of a saved model may have together, its weights left out."""
NAME_A_MODEL = "name a directory that `tfkit build -o` or `tfkit train -o` wrote"


class Versions(FileModel):
    """The content of versions.json."""

    format: Literal[1]
    contract: int
    dtype: Literal["float64", "float32", "bfloat16", "float16"]
    python: str
    torch: str
    plugins: dict[str, str]
    files: dict[str, FileFacts]

    @field_validator("files")
    @classmethod
    def _complete(cls, files: dict[str, FileFacts]) -> dict[str, FileFacts]:
        if missing := {SPEC, WEIGHTS, PLAN} - files.keys():
            raise ValueError(f"it does not list {', '.join(sorted(missing))}")
        if (total := sum(facts.bytes for name, facts in files.items() if name != WEIGHTS)) > LARGEST_TEXTS:
            raise ValueError(f"beside the weights {total:,} bytes are listed, and at most {LARGEST_TEXTS:,} are read")
        return files


class _Format(FileModel):
    """The format alone, of a file that may have another one."""

    model_config = ConfigDict(extra="ignore")
    format: int


class _PlanRow(FileModel):
    site: str
    lengths: list[int | None] | None
    chosen: str | None


class _Plan(FileModel):
    """The content of plan.json. The backends of `sites` are judged by the catalogue."""

    sites: dict[str, list[Any]]
    device: str
    dtype: str
    table: list[_PlanRow]


class Best(FileModel):
    """The content of best.json."""

    model: str
    metric: str
    worth: float


class _Object(RootModel[dict[str, Any]]):
    """Any object."""


def save(
    model: Model,
    directory: str | Path,
    *,
    overwrite: bool = False,
    catalogue: Catalogue | None = None,
    texts: Mapping[str, str] | None = None,
) -> Path:
    """Write a model, and `texts` by file name that belong to it (its tokenisers). The directory appears whole or not at all: it
    is written beside its place and then renamed.

    Raises StoreError where it exists already, or where the disk is full or not writable; what stood there is left as it was.
    `overwrite` replaces a saved model, if the directory holds nothing beside the files that were saved there.
    """
    model = getattr(model, "_orig_mod", model)  # what torch.compile wraps
    directory = Path(directory).absolute()
    check_place(directory, overwrite)
    empty = [name for name, tensor in model.state_dict().items() if tensor.is_meta]
    if empty:
        message = f"`{empty[0]}` and {len(empty) - 1} more are on the meta device and have no numbers"
        raise StoreError(Fault("TFK081", message, "build the model on another device"))
    catalogue = catalogue or load_catalogue()
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", suffix=".draft", dir=directory.parent))
    except (OSError, ValueError) as reason:  # ValueError: a NUL in the name
        raise StoreError(Fault("TFK081", f"{directory.parent} cannot be written: {_words(reason)}")) from None
    try:
        _write(model, draft, catalogue, texts or {})
        draft.chmod(0o777 & ~umask())
        put_in_place(draft, directory, written_names(directory) if os.path.lexists(directory) else ())
    except (OSError, ValueError, SafetensorError, RuntimeError) as reason:  # ValueError: a name that no file can have
        raise StoreError(
            Fault("TFK081", f"{directory} could not be written: {_words(reason)}", "nothing was changed")
        ) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return directory


def load(
    directory: str | Path, *, device: str | torch.device = "cpu", backend: Any = None, catalogue: Catalogue | None = None
) -> Model:
    """The model that `save` wrote, with the same numbers; of a training run's directory the best one. `backend` replaces the
    backends it was saved with at every site.

    Raises StoreError where a file is missing, altered, or of another format; SpecError and BackendRefused as `tfkit.build`.
    """
    directory = model_in(Path(directory))
    catalogue = catalogue or load_catalogue()
    versions = _checked(directory)
    dtype: torch.dtype = getattr(torch, versions.dtype)
    spec = _saved_spec(directory / SPEC, catalogue)
    _check_room(directory / WEIGHTS, versions.files[WEIGHTS], spec, dtype)
    # On `meta` no backend is refused: what the device cannot do is asked once the wishes are known.
    model = build(spec, catalogue, device="meta", dtype=dtype)
    wishes = read_model(directory / PLAN, _Plan).sites
    if set(wishes) != set(model.sites):
        message = f"{directory / PLAN} has other attention sites than {directory / SPEC}"
        raise StoreError(Fault("TFK082", message, "it was altered"))
    for wish, sites in [(backend, list(wishes))] if backend is not None else _by_wish(wishes):
        model.set_backend(wish, sites)
    check_header(directory / WEIGHTS, _facts(model.state_dict()), "the spec")
    check_digest(directory / WEIGHTS, versions.files[WEIGHTS])
    # Copied rather than kept: at the addresses that the file gives them, matrix products may round differently.
    model.to_empty(device=device).load_state_dict(read_weights(directory))
    model.retarget(torch.device(device), dtype)
    return model


def _checked(directory: Path) -> Versions:
    """The versions of a saved model, whose files have their sizes and all but the weights their digests."""
    path = directory / VERSIONS
    found = read_model(path, _Format, fix=NAME_A_MODEL).format
    if found != FORMAT:
        message = f"{directory} has format {found}, this tfkit reads {FORMAT}"
        raise StoreError(Fault("TFK083", message, "load it with the tfkit that wrote it"))
    versions = read_model(path, Versions)
    for name, facts in check_sizes(path, versions.files).items():
        if name != WEIGHTS:
            check_digest(directory / name, facts)
    return versions


def _saved_spec(path: Path, catalogue: Catalogue) -> ModelSpec:
    """The spec of a saved model. It was resolved when it was written, so it extends no other file."""
    try:
        text = read_bytes(path, links=False)
    except OSError as reason:
        raise StoreError(Fault("TFK082", f"{path} cannot be read: {reason.strerror}")) from None
    if "extends" in read_text(text, str(path), Faults()).mapping:
        raise StoreError(Fault("TFK082", f"{path} extends another file, which no saved spec does", "it was altered"))
    return parse_spec(text, catalogue, file=str(path))


def _check_room(path: Path, facts: FileFacts, spec: ModelSpec, dtype: torch.dtype) -> None:
    """Raises StoreError where a file is too small for the weights of a spec, before modules are made for them."""
    graph = graph_of(spec)
    needed = (graph.parameters() + graph.parameters(trainable=False)) * dtype.itemsize
    if facts.bytes < needed:
        message = f"{path} has {facts.bytes:,} bytes, and the weights of the spec need {needed:,}"
        raise StoreError(Fault("TFK082", message, "it was altered"))


def read_weights(directory: Path) -> dict[str, Tensor]:
    """The weights of a saved model that was checked. Raises StoreError."""
    try:
        return load_file(directory / WEIGHTS)
    except (SafetensorError, OSError) as reason:
        raise StoreError(Fault("TFK082", f"{directory / WEIGHTS} cannot be read: {_words(reason)}")) from None


def check_tensors(path: Path, tensors: Mapping[str, Tensor], like: Mapping[str, Tensor], whose: str) -> None:
    """The tensors of a file have the names, shapes and dtypes of those that something (`whose`: "the spec") needs. Raises
    StoreError."""
    compare_tensors(path, _facts(tensors), _facts(like), whose)


def _facts(tensors: Mapping[str, Tensor]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for name, tensor in tensors.items()}


def _by_wish(sites: Mapping[str, list[Any]]) -> list[tuple[list[Any], list[str]]]:
    grouped: dict[str, tuple[list[Any], list[str]]] = {}
    for site, wish in sites.items():
        grouped.setdefault(json.dumps(wish), (wish, []))[1].append(site)
    return list(grouped.values())


def check_place(directory: Path, overwrite: bool) -> None:
    """Raises StoreError, TFK080, where a model may not be saved because of what stands there."""
    if os.path.lexists(directory) and written_names(directory) and not overwrite:
        raise StoreError(
            Fault("TFK080", f"{directory} exists already", "choose another directory, or pass overwrite (--force)")
        )


def written_names(directory: Path) -> set[str]:
    """The names of the files of a saved model that may be replaced; none of an empty directory. Raises StoreError, TFK080, for
    anything else: a link, a directory that holds anything that tfkit did not write there."""
    try:
        if directory.is_symlink():
            raise OSError(None, "it is a link")
        if not any(directory.iterdir()):
            return set()
        files = read_model(directory / VERSIONS, Versions).files
    except (OSError, StoreError) as reason:
        why = reason.strerror if isinstance(reason, OSError) else reason.faults[0].message
        message = f"{directory} exists and is no saved model, so it is not replaced: {why}"
        raise StoreError(Fault("TFK080", message, "choose another directory")) from None
    # Anybody can write a listing. Beside the files of every model it vouches only for those whose digests it knows.
    names = {VERSIONS, SPEC, WEIGHTS, PLAN} | {name for name, facts in files.items() if _is_as_listed(directory / name, facts)}
    check_removable(directory, names)
    return names


def _is_as_listed(path: Path, facts: FileFacts) -> bool:
    try:
        return path.lstat().st_size == facts.bytes and file_facts(path) == facts.model_dump()
    except OSError:
        return False


def _write(model: Model, draft: Path, catalogue: Catalogue, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        if name in (SPEC, WEIGHTS, PLAN, VERSIONS):
            raise ValueError(f"`texts` may not hold {name}, which is written with every model")
        child(draft, name).write_text(text, encoding="utf-8")
    (draft / SPEC).write_text(to_yaml(model.spec), encoding="utf-8")
    tensors = {name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}
    save_file(tensors, draft / WEIGHTS)
    first = next(model.parameters(), None)
    device, dtype = (first.device.type, first.dtype) if first is not None else ("cpu", torch.float32)
    target = Target(device=device, dtype=str(dtype).removeprefix("torch."), training=False)
    table = [
        {"site": row.site, "lengths": row.lengths, "chosen": row.chosen}
        for row in plan(graph_of(model.spec), catalogue, target)
    ]
    _write_json(draft / PLAN, {"sites": model.wishes, "device": target.device, "dtype": target.dtype, "table": table})
    files = {name: file_facts(draft / name) for name in (SPEC, WEIGHTS, PLAN, *texts)}
    plugins = {distribution: version for _, distribution, version in catalogue.plugins}
    _write_json(
        draft / VERSIONS,
        {
            "format": FORMAT,
            "contract": CONTRACT,
            "dtype": target.dtype,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "plugins": plugins,
            "files": files,
        },
    )
    for path in draft.iterdir():
        with path.open("rb") as file:
            os.fsync(file.fileno())


def put_in_place(draft: Path, directory: Path, names: Collection[str]) -> None:
    """Give a finished draft beside a directory its name. What stands there, files of these `names` that tfkit wrote and nothing
    else, goes only once the draft does. Raises OSError, and StoreError as `check_removable`."""
    if not os.path.lexists(directory):
        draft.rename(directory)
        return
    check_removable(directory, names)
    old = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", suffix=".old", dir=directory.parent))
    kept = old / directory.name
    try:
        directory.rename(kept)
        draft.rename(directory)
    finally:  # also when interrupted: the old model stays until the new one stands
        if not directory.exists():
            kept.rename(directory)
        if kept.exists():
            remove_written(kept, names)
        old.rmdir()


def _write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def model_in(directory: Path) -> Path:
    """The directory of a model: this one, or the best of the run that stands here. Raises StoreError."""
    models = directory / "models"
    best = models / BEST
    if not os.path.lexists(best):
        return directory
    try:
        return child(child(directory, models.name), read_model(best, Best).model)
    except ValueError as reason:
        raise StoreError(Fault("TFK082", f"{best} does not name a model beside it: {reason}", "it was altered")) from None


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file. Raises StoreError."""
    return read_model(path, _Object, fix=NAME_A_MODEL).root


def _words(reason: Exception) -> str:
    return (reason.strerror if isinstance(reason, OSError) else None) or str(reason)
