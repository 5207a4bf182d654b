"""Load a saved model. Every file is checked first, and the weights are equal bit for bit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from ..builder import build
from ..catalogue import Catalogue, load_catalogue
from ..errors import Diagnostic, StoreError
from ..files import FileRecord, check_digest, check_header, check_sizes, compare_tensors, read_bytes, read_model
from ..files import read_text as read_text_file
from ..graph import graph_of
from ..nn.model import Model
from ..spec import ModelSpec, parse_spec
from ..spec.located import Diagnostics
from ..spec.reader import read_text
from .layout import FORMAT, NAME_A_MODEL, PLAN, SPEC, VERSIONS, WEIGHTS, Format, Plan, Versions, model_in
from .replacing import describe


def load(
    directory: str | Path, *, device: str | torch.device = "cpu", backend: Any = None, catalogue: Catalogue | None = None
) -> Model:
    """Load a model that `save` wrote. All weights are equal bit for bit.

    Args:
        directory: directory of a model, or of a training run, whose best model is loaded.
        device: where the model is loaded.
        backend: the attention backend of every site, instead of those that were saved.
        catalogue: the entries that names refer to; those of the installed plugins by default.

    Returns:
        The model, in training mode.

    Raises:
        StoreError: a file is missing, altered, or has another format.
        SpecError: as in `tfkit.build`.
        BackendRefused: as in `tfkit.build`.
    """
    directory = model_in(Path(directory))
    catalogue = catalogue or load_catalogue()
    versions = _check_files(directory)
    dtype: torch.dtype = getattr(torch, versions.dtype)
    spec = _saved_spec(directory / SPEC, catalogue)
    _check_room(directory / WEIGHTS, versions.files[WEIGHTS], spec, dtype)
    # On `meta` no backend is refused. `retarget` checks the saved ones for the device below.
    model = build(spec, catalogue, device="meta", dtype=dtype)
    requested_backends = read_model(directory / PLAN, Plan).sites
    if set(requested_backends) != set(model.sites):
        message = f"{directory / PLAN} has other attention sites than {directory / SPEC}"
        raise StoreError(Diagnostic("TFK082", message, "it was altered"))
    for requested, sites in [(backend, list(requested_backends))] if backend is not None else _by_request(requested_backends):
        model.set_backend(requested, sites)
    check_header(directory / WEIGHTS, _facts(model.state_dict()), "the spec")
    check_digest(directory / WEIGHTS, versions.files[WEIGHTS])
    # `load_state_dict` copies the weights. Mapped from the file, their alignment may change how matrix products round.
    model.to_empty(device=device).load_state_dict(read_weights(directory))
    model.retarget(torch.device(device), dtype)
    return model


def _check_files(directory: Path) -> Versions:
    """The versions of a saved model. Checks the sizes of all files, and the digests of all but the weights."""
    path = directory / VERSIONS
    found = read_model(path, Format, fix=NAME_A_MODEL).format
    if found != FORMAT:
        message = f"{directory} has format {found}, this tfkit reads {FORMAT}"
        raise StoreError(Diagnostic("TFK083", message, "load it with the tfkit that wrote it"))
    versions = read_model(path, Versions)
    for name, record in check_sizes(path, versions.files).items():
        if name != WEIGHTS:
            check_digest(directory / name, record)
    return versions


def _saved_spec(path: Path, catalogue: Catalogue) -> ModelSpec:
    """The spec of a saved model. It was resolved when it was written, so it extends no other file."""
    try:
        text = read_bytes(path, links=False)
    except OSError as reason:
        raise StoreError(Diagnostic("TFK082", f"{path} cannot be read: {reason.strerror}")) from None
    if "extends" in read_text(text, str(path), Diagnostics()).mapping:
        raise StoreError(Diagnostic("TFK082", f"{path} extends another file, which no saved spec does", "it was altered"))
    return parse_spec(text, catalogue, file=str(path))


def _check_room(path: Path, facts: FileRecord, spec: ModelSpec, dtype: torch.dtype) -> None:
    """Raises StoreError if a file is too small for the weights of a spec, before the modules are built."""
    graph = graph_of(spec)
    needed = (graph.parameters() + graph.parameters(trainable=False)) * dtype.itemsize
    if facts.bytes < needed:
        message = f"{path} has {facts.bytes:,} bytes, and the weights of the spec need {needed:,}"
        raise StoreError(Diagnostic("TFK082", message, "it was altered"))


def other_files(directory: Path) -> dict[str, str]:
    """The files of a saved model that its caller gave to `save` (tokenisers, labels), by name. Raises StoreError."""
    directory = model_in(directory)
    files = read_model(directory / VERSIONS, Versions).files
    found = {}
    for name, record in files.items():
        if name not in (SPEC, WEIGHTS, PLAN):
            check_digest(directory / name, record)
            found[name] = read_text_file(directory / name, record.bytes, links=False)
    return found


def read_weights(directory: Path) -> dict[str, Tensor]:
    """The weights of a saved model, which the caller has checked. Raises StoreError."""
    try:
        return load_file(directory / WEIGHTS)
    except (SafetensorError, OSError) as reason:
        raise StoreError(Diagnostic("TFK082", f"{directory / WEIGHTS} cannot be read: {describe(reason)}")) from None


def check_tensors(path: Path, tensors: Mapping[str, Tensor], like: Mapping[str, Tensor], whose: str) -> None:
    """Raises StoreError if names, shapes or dtypes of tensors differ from those of `like`, which messages call `whose`."""
    compare_tensors(path, _facts(tensors), _facts(like), whose)


def _facts(tensors: Mapping[str, Tensor]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for name, tensor in tensors.items()}


def _by_request(sites: Mapping[str, list[Any]]) -> list[tuple[list[Any], list[str]]]:
    grouped: dict[str, tuple[list[Any], list[str]]] = {}
    for site, requested in sites.items():
        grouped.setdefault(json.dumps(requested), (requested, []))[1].append(site)
    return list(grouped.values())
