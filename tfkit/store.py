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
from .graph import Target, graph_of, plan
from .nn.model import Model
from .slots.options import CONTRACT
from .spec import load_spec, to_yaml

FORMAT = 1
SPEC, WEIGHTS, PLAN, VERSIONS = "spec.yaml", "model.safetensors", "plan.json", "versions.json"


def save(model: Model, directory: str | Path, *, overwrite: bool = False, catalogue: Catalogue | None = None) -> Path:
    """Write a model. The directory appears whole or not at all: it is written beside its place and then renamed.

    Raises StoreError where it exists already (unless `overwrite`, and then only a saved model is replaced), or where the disk
    is full or not writable; whatever stood there before is left as it was.
    """
    directory = Path(directory).absolute()
    check_place(directory, overwrite)
    catalogue = catalogue or load_catalogue()
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        draft = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", suffix=".draft", dir=directory.parent))
    except OSError as reason:
        raise StoreError(Fault("TFK081", f"{directory.parent} cannot be written: {reason.strerror}")) from None
    try:
        _write(model, draft, catalogue)
        draft.chmod(0o777 & ~_umask())
        _move(draft, directory)
    except (OSError, SafetensorError) as reason:
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
    versions = _read_json(directory / VERSIONS)
    if versions.get("format") != FORMAT:
        message = f"{directory} has format {versions.get('format')}, this tfkit reads {FORMAT}"
        raise StoreError(Fault("TFK083", message, "load it with the tfkit that wrote it"))
    for name, facts in versions["files"].items():
        _check_file(directory / name, facts)
    dtype = getattr(torch, versions["dtype"])
    model = build(load_spec(directory / SPEC, catalogue), catalogue, device="meta", dtype=dtype)
    try:
        tensors = load_file(directory / WEIGHTS, device=str(device))
    except SafetensorError as reason:
        raise StoreError(Fault("TFK082", f"{directory / WEIGHTS} cannot be read: {reason}")) from None
    model.load_state_dict(tensors, assign=True)
    model.retarget(torch.device(device), dtype)
    if backend is not None:
        model.set_backend(backend)
    else:
        for wish, sites in _by_wish(_read_json(directory / PLAN)["sites"]):
            model.set_backend(wish, sites)
    return model


def _by_wish(sites: Mapping[str, list[Any]]) -> list[tuple[list[Any], list[str]]]:
    grouped: dict[str, tuple[list[Any], list[str]]] = {}
    for site, wish in sites.items():
        grouped.setdefault(json.dumps(wish), (wish, []))[1].append(site)
    return list(grouped.values())


def check_place(directory: Path, overwrite: bool) -> None:
    if not directory.exists():
        return
    if not overwrite:
        raise StoreError(
            Fault("TFK080", f"{directory} exists already", "choose another directory, or pass overwrite (--force)")
        )
    if not directory.is_dir() or (any(directory.iterdir()) and not (directory / VERSIONS).is_file()):
        raise StoreError(
            Fault("TFK080", f"{directory} exists and is no saved model, so it is not replaced", "choose another directory")
        )


def _write(model: Model, draft: Path, catalogue: Catalogue) -> None:
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
    files = {name: _facts(draft / name) for name in (SPEC, WEIGHTS, PLAN)}
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


def _move(draft: Path, directory: Path) -> None:
    if not directory.exists():
        draft.rename(directory)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{directory.name}.", suffix=".old", dir=directory.parent))
    directory.rename(old / directory.name)
    try:
        draft.rename(directory)
    except OSError:
        (old / directory.name).rename(directory)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def _facts(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return {"bytes": path.stat().st_size, "sha256": digest.hexdigest()}


def _check_file(path: Path, expected: Mapping[str, Any]) -> None:
    if not path.is_file():
        raise StoreError(Fault("TFK082", f"{path} is missing"))
    found = _facts(path)
    if found != expected:
        message = f"{path} has {found['bytes']:,} bytes, SHA-256 {found['sha256'][:12]}...; {expected['bytes']:,} bytes, "
        raise StoreError(Fault("TFK082", message + f"{expected['sha256'][:12]}... were written", "it was altered or cut off"))


def _write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")


def _read_json(path: Path) -> dict[str, Any]:
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


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
