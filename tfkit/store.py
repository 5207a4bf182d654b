"""A built model in a directory, and back: no pickle, nothing half-written, the same numbers bit for bit.

spec.yaml           the resolved spec
model.safetensors   the weights
plan.json           the backends asked for at each site, and the table of what is chosen on the device it was built for
versions.json       versions of tfkit, its contract, torch and the plugins; size and SHA-256 of the other files
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import shutil
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from .builder import build
from .catalogue import Catalogue, load_catalogue
from .errors import Fault, StoreError
from .files import umask
from .graph import Target, graph_of, plan
from .nn.model import Model
from .slots.options import CONTRACT
from .spec import load_spec, to_yaml

FORMAT = 1
SPEC, WEIGHTS, PLAN, VERSIONS = "spec.yaml", "model.safetensors", "plan.json", "versions.json"
BEST = "best.json"
"""Beside several models, the file that names the best one."""


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

    Raises StoreError where it exists already (unless `overwrite`, and then only a saved model is replaced), or where the disk
    is full or not writable; whatever stood there before is left as it was.
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
    except OSError as reason:
        raise StoreError(Fault("TFK081", f"{directory.parent} cannot be written: {reason.strerror}")) from None
    try:
        _write(model, draft, catalogue, texts or {})
        draft.chmod(0o777 & ~umask())
        put_in_place(draft, directory)
    except (OSError, SafetensorError, RuntimeError) as reason:
        raise StoreError(
            Fault("TFK081", f"{directory} could not be written: {_words(reason)}", "nothing was changed")
        ) from None
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return directory


def load(
    directory: str | Path, *, device: str | torch.device = "cpu", backend: Any = None, catalogue: Catalogue | None = None
) -> Model:
    """The model that `save` wrote, with the same numbers. `backend` replaces the backends it was saved with at every site.

    Raises StoreError where a file is missing, altered, or of another format; SpecError and BackendRefused as `tfkit.build`.
    """
    directory = Path(directory)
    catalogue = catalogue or load_catalogue()
    dtype = _checked(directory)
    # On `meta` no backend is refused: what the device cannot do is asked once the wishes are known.
    model = build(load_spec(directory / SPEC, catalogue), catalogue, device="meta", dtype=dtype)
    wishes = read_json(directory / PLAN).get("sites")
    if not isinstance(wishes, dict) or set(wishes) != set(model.sites):
        raise StoreError(Fault("TFK082", f"{directory / PLAN} does not speak of the attention sites of {directory / SPEC}"))
    for wish, sites in [(backend, list(wishes))] if backend is not None else _by_wish(wishes):
        model.set_backend(wish, sites)
    try:
        tensors = load_file(directory / WEIGHTS)
    except SafetensorError as reason:
        raise StoreError(Fault("TFK082", f"{directory / WEIGHTS} cannot be read: {reason}")) from None
    check_tensors(directory / WEIGHTS, tensors, model.state_dict(), "the spec")
    # Copied rather than kept: at the addresses that the file gives them, matrix products may round differently.
    model.to_empty(device=device).load_state_dict(tensors)
    model.retarget(torch.device(device), dtype)
    return model


def _checked(directory: Path) -> torch.dtype:
    """The dtype of a saved model, all of whose files are as they were written."""
    path = directory / VERSIONS
    versions = read_json(path)
    if versions.get("format") != FORMAT:
        message = f"{directory} has format {versions.get('format')}, this tfkit reads {FORMAT}"
        raise StoreError(Fault("TFK083", message, "load it with the tfkit that wrote it"))
    files, dtype = versions.get("files"), getattr(torch, str(versions.get("dtype")), None)
    if not isinstance(files, dict) or not files.keys() >= {SPEC, WEIGHTS, PLAN}:
        raise StoreError(Fault("TFK082", f"{path} does not list the files {SPEC}, {WEIGHTS} and {PLAN}", "it was altered"))
    if not isinstance(dtype, torch.dtype) or not dtype.is_floating_point:
        raise StoreError(Fault("TFK082", f"{path} names the dtype {versions.get('dtype')}, which is none", "it was altered"))
    check_files(path, files)
    return dtype


def check_tensors(path: Path, tensors: Mapping[str, torch.Tensor], like: Mapping[str, torch.Tensor], whose: str) -> None:
    """The tensors of a file have the names, shapes and dtypes of those that something (`whose`: "the spec") needs. Raises
    StoreError."""
    found = {name: f"{tuple(tensor.shape)} {tensor.dtype}" for name, tensor in tensors.items()}
    wanted = {name: f"{tuple(tensor.shape)} {tensor.dtype}" for name, tensor in like.items()}
    faults = [
        Fault("TFK082", f"{path}: `{name}` is {found.get(name, 'missing')}, {whose} needs {wanted.get(name, 'none')}")
        for name in sorted(set(found) | set(wanted))
        if found.get(name) != wanted.get(name)
    ]
    if len(faults) > 3:
        faults = [*faults[:3], Fault("TFK082", f"{path}: {len(faults) - 3} more tensors are not those that {whose} needs")]
    if faults:
        raise StoreError(faults)


def _by_wish(sites: Mapping[str, list[Any]]) -> list[tuple[list[Any], list[str]]]:
    grouped: dict[str, tuple[list[Any], list[str]]] = {}
    for site, wish in sites.items():
        grouped.setdefault(json.dumps(wish), (wish, []))[1].append(site)
    return list(grouped.values())


def check_place(directory: Path, overwrite: bool) -> None:
    if not directory.exists():
        return
    if not directory.is_dir() or (any(directory.iterdir()) and not (directory / VERSIONS).is_file()):
        raise StoreError(
            Fault("TFK080", f"{directory} exists and is no saved model, so it is not replaced", "choose another directory")
        )
    if not overwrite and any(directory.iterdir()):
        raise StoreError(
            Fault("TFK080", f"{directory} exists already", "choose another directory, or pass overwrite (--force)")
        )


def _write(model: Model, draft: Path, catalogue: Catalogue, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        (draft / name).write_text(text, encoding="utf-8")
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


def put_in_place(draft: Path, directory: Path) -> None:
    """Give a finished draft beside a directory its name; what stands there goes only once the draft does. Raises OSError."""
    if not directory.exists():
        draft.rename(directory)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", suffix=".old", dir=directory.parent))
    kept = old / directory.name
    try:
        directory.rename(kept)
        draft.rename(directory)
    finally:  # also when interrupted: the old model stays until the new one stands
        if not directory.exists():
            kept.rename(directory)
        shutil.rmtree(old, ignore_errors=True)


def file_facts(path: Path) -> dict[str, Any]:
    """Size and SHA-256 of a file, as a list of files holds them."""
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def check_files(listing: Path, files: Mapping[str, Any]) -> None:
    """Raises StoreError where files that a listing beside them names, or in folders there, are not those that it speaks of."""
    for name, facts in files.items():
        if Path(name).is_absolute() or ".." in Path(name).parts:
            raise StoreError(Fault("TFK082", f"{listing} names the file {name}, which is elsewhere", "it was altered"))
        if not isinstance(facts, dict) or {key: type(value) for key, value in facts.items()} != {"bytes": int, "sha256": str}:
            raise StoreError(Fault("TFK082", f"{listing} does not give the size and SHA-256 of {name}", "it was altered"))
        _check_file(listing.parent / name, facts)


def _check_file(path: Path, expected: Mapping[str, Any]) -> None:
    if not path.is_file():
        raise StoreError(Fault("TFK082", f"{path} is missing"))
    found = file_facts(path)
    if found != expected:
        message = f"{path} has {found['bytes']:,} bytes, SHA-256 {found['sha256'][:12]}...; {expected['bytes']:,} bytes, "
        raise StoreError(Fault("TFK082", message + f"{expected['sha256'][:12]}... were written", "it was altered or cut off"))


def _write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file. Raises StoreError."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except OSError as reason:
        message = f"{path} cannot be read: {reason.strerror}"
        raise StoreError(Fault("TFK082", message, "name a directory that `tfkit build -o` wrote")) from None
    except ValueError as reason:
        raise StoreError(Fault("TFK082", f"{path} is no JSON: {reason}")) from None
    if not isinstance(data, dict):
        raise StoreError(Fault("TFK082", f"{path} holds no JSON object"))
    return data


def _words(reason: Exception) -> str:
    return (reason.strerror if isinstance(reason, OSError) else None) or str(reason)
