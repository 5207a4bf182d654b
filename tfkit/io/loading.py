"""Load a saved model. Every file is checked first, and the weights are equal bit for bit."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file
from torch import Tensor

from ..builder import build
from ..catalogue import Catalogue, load_catalogue
from ..errors import BuildError, Diagnostic, StoreError
from ..files import check_digest, check_header, compare_tensors, read_model
from ..graph import graph_of
from ..nn.model import Model
from ..nn.precision import check_precision, round_weights
from .adapter import read_adapted
from .finite import check_finite
from .layout import PLAN, SPEC, WEIGHTS, Plan, model_in
from .replacing import describe
from .saved_files import check_room, read_versions, saved_spec, with_dtypes


def load(
    directory: str | Path,
    *,
    device: str | torch.device = "cpu",
    backend: Any = None,
    precision: str = "float32",
    allow_nan: bool = False,
    catalogue: Catalogue | None = None,
    base: str | Path | None = None,
) -> Model:
    """Load a model that `save` wrote. All weights are equal bit for bit, and each has its dtype. Adapters are merged with their
    base model.

    Args:
        directory: directory of a model, or of a training run, whose best model is loaded.
        device: where the model is loaded.
        backend: the attention backend of every site, instead of those that were saved.
        precision: "float32"; "bfloat16" to decode on a CPU with weights and activations of 16 bits; "int8" to decode with 8
            bits and a scale for each output channel and each row. A model of 16 or 8 bits has no gradients and cannot be saved.
            The file of the weights must stay as it is while the model is used: single rows of embeddings are read from it.
        allow_nan: load weights that hold NaN or infinity too, to find out where they come from.
        catalogue: the entries that names refer to; those of the installed plugins by default.
        base: the base model of an adapter, if it is no longer where it was.

    Returns:
        The model, in training mode.

    Raises:
        StoreError: a file is missing, altered, or has another format; or weights are NaN or infinite.
        SpecError: as in `tfkit.build`.
        BackendRefused: as in `tfkit.build`.
        BuildError: the precision cannot be computed here.
    """
    catalogue = catalogue or load_catalogue()
    check_precision(precision, device, catalogue.entries("int8_kernel"))
    directory = model_in(Path(directory))
    versions = read_versions(directory)
    dtype: torch.dtype = getattr(torch, versions.dtype)
    spec = saved_spec(directory / SPEC, catalogue)
    if versions.base is None:
        check_room(directory / WEIGHTS, versions, graph_of(spec))
    model = build(spec, catalogue, device="meta", dtype=dtype)  # where the backends of the spec are not refused
    requested_backends = read_model(directory / PLAN, Plan).sites
    if set(requested_backends) != set(model.sites):
        message = f"{directory / PLAN} has other attention sites than {directory / SPEC}"
        raise StoreError(Diagnostic("TFK082", message, "it was altered"))
    for requested, sites in [(backend, list(requested_backends))] if backend is not None else _by_request(requested_backends):
        model.set_backend(requested, sites)
    facts = with_dtypes(directory, versions, {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()})
    if versions.base is None:
        check_header(directory / WEIGHTS, facts, "the spec")
        check_digest(directory / WEIGHTS, versions.files[WEIGHTS])
    shapes = {name: shape for name, (_, shape) in facts.items()}
    merged = None if versions.base is None else read_adapted(directory, shapes, None if base is None else Path(base))

    def weights() -> dict[str, Tensor]:
        return read_weights(directory) if merged is None else merged

    if not allow_nan:
        check_finite(directory / versions.weights, weights())
    if versions.dtypes and precision != "float32":
        message = f"{directory} has weights of several dtypes; {precision} is made from float32"
        raise BuildError(Diagnostic("TFK047", message, "load it without `precision`"))
    for name, mixed in versions.dtypes.items():
        parameter = model.get_parameter(name)
        parameter.data = parameter.data.to(getattr(torch, mixed))
    if precision != "float32":
        model.load_state_dict(weights(), assign=True)
        # Mapped again, so that what was read to be rounded leaves the memory.
        round_weights(model, precision, catalogue.entries("int8_kernel"), weights())
    else:
        # `load_state_dict` copies the weights. Mapped from the file, their alignment may change how matrix products round.
        model.to_empty(device=device).load_state_dict(weights())
    return model


def read_weights(directory: Path) -> dict[str, Tensor]:
    """The weights of a saved model, which the caller has checked. Raises StoreError."""
    try:
        return load_file(directory / WEIGHTS)
    except (SafetensorError, OSError) as reason:
        raise StoreError(Diagnostic("TFK082", f"{directory / WEIGHTS} cannot be read: {describe(reason)}")) from None


def all_weights(directory: Path) -> dict[str, Tensor]:
    """The weights of a saved model or of an adapter with its base, which `load` has checked. Raises StoreError."""
    if read_versions(directory).base is None:
        return read_weights(directory)
    return dict(load(directory, backend="auto").state_dict())


@contextmanager
def weight_reader(directory: str | Path | None) -> Iterator[Callable[[str], Tensor] | None]:
    """Reads single weights of a saved model, which `read_saved` has checked, by name; None without a directory. Reading
    raises StoreError for a weight that holds NaN or infinity."""
    if directory is None:
        yield None
        return
    place = model_in(Path(directory))
    if read_versions(place).base is not None:
        yield all_weights(place).__getitem__
        return
    path = place / WEIGHTS
    with safe_open(path, "pt") as file:

        def read(name: str) -> Tensor:
            tensor: Tensor = file.get_tensor(name)
            check_finite(path, {name: tensor}, "train from an earlier checkpoint")
            return tensor

        yield read


def check_tensors(path: Path, tensors: Mapping[str, Tensor], like: Mapping[str, Tensor], whose: str) -> None:
    """Raises StoreError if names, shapes or dtypes of tensors differ from those of `like`, which messages call `whose`."""
    compare_tensors(path, _facts(tensors), _facts(like), whose)


def _facts(tensors: Mapping[str, Tensor]) -> dict[str, tuple[str, tuple[int, ...]]]:
    return {name: (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape)) for name, tensor in tensors.items()}


def _by_request(sites: Mapping[str, list[Any]]) -> list[tuple[list[Any], list[str]]]:
    grouped: dict[str, tuple[list[Any], list[str]]] = {}
    for site, requested in sites.items():
        grouped.setdefault(json.dumps(requested, allow_nan=False), (requested, []))[1].append(site)
    return list(grouped.values())
