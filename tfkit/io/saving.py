"""Save a model into a directory, atomically and without pickle."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ..catalogue import Catalogue, load_catalogue
from ..errors import Diagnostic, StoreError
from ..files import FileRecord, child, file_record
from ..graph import Target, graph_of, plan
from ..graph.flash_implementation import flash_implementation
from ..nn.model import Model
from ..slots.options import CONTRACT
from ..spec import ModelSpec, to_yaml
from .layout import FORMAT, PLAN, SPEC, VERSIONS, WEIGHTS
from .replacing import check_place, write_directory


def save(
    model: Model,
    directory: str | Path,
    *,
    overwrite: bool = False,
    catalogue: Catalogue | None = None,
    texts: Mapping[str, str | bytes] | None = None,
) -> Path:
    """Save a model. The directory is written under another name and then renamed, so that it is never incomplete.

    Args:
        model: a built model.
        directory: the directory to create.
        overwrite: replace a saved model, if its directory contains only files that tfkit wrote.
        catalogue: the entries of the spec; those of the installed plugins by default.
        texts: the content of further files that belong to the model (tokenisers), by name.

    Returns:
        The absolute path of the directory.

    Raises:
        StoreError: the directory exists, or cannot be written, or the model is int8. Its content is unchanged.
    """
    model = getattr(model, "_orig_mod", model)  # the model inside torch.compile's wrapper
    directory = Path(directory).absolute()
    check_place(directory, overwrite)
    empty = [name for name, tensor in model.state_dict().items() if tensor.is_meta]
    if empty:
        message = f"`{empty[0]}` and {len(empty) - 1} more are on the meta device and have no values"
        raise StoreError(Diagnostic("TFK081", message, "build the model on another device"))
    if model.precision != "float32":
        message = f"the model was loaded with {model.precision} weights, which are not those that were trained"
        raise StoreError(Diagnostic("TFK081", message, "load it without `precision` and save that"))
    catalogue = catalogue or load_catalogue()
    first = next(model.parameters(), None)
    device, dtype = (first.device.type, first.dtype) if first is not None else ("cpu", torch.float32)

    def write_weights(path: Path) -> FileRecord:
        save_file({name: tensor.detach().contiguous() for name, tensor in model.state_dict().items()}, path)
        return FileRecord(**file_record(path))

    contents = ModelFiles(
        model.spec, model.requested_backends, device, str(dtype).removeprefix("torch."), dict(texts or {}), write_weights
    )
    return write_model(contents, directory, catalogue, overwrite=overwrite)


@dataclass(frozen=True)
class ModelFiles:
    """What the directory of a model is written from.

    Args:
        spec: the spec of the model.
        requested_backends: by attention site, as a spec writes them.
        device: the device that the plan is for.
        dtype: the dtype of the weights, by torch's name.
        texts: further files, by name.
        write_weights: writes the weights into a new file, and returns its size and digest.
    """

    spec: ModelSpec
    requested_backends: Mapping[str, list[Any]]
    device: str
    dtype: str
    texts: Mapping[str, str | bytes]
    write_weights: Callable[[Path], FileRecord]


def write_model(contents: ModelFiles, directory: Path, catalogue: Catalogue, *, overwrite: bool = False) -> Path:
    """Write the directory of a model under another name, then rename it. Arguments and errors as in `save`."""
    directory = directory.absolute()
    check_place(directory, overwrite)
    write_directory(directory, lambda draft: _write(contents, draft, catalogue))
    return directory


def _write(contents: ModelFiles, draft: Path, catalogue: Catalogue) -> None:
    for name, text in contents.texts.items():
        if name in (SPEC, WEIGHTS, PLAN, VERSIONS):
            raise ValueError(f"`texts` may not have the name {name}, which every saved model has")
        child(draft, name).write_bytes(text if isinstance(text, bytes) else text.encode("utf-8"))
    (draft / SPEC).write_text(to_yaml(contents.spec), encoding="utf-8")
    weights = contents.write_weights(draft / WEIGHTS)
    target = Target(device=contents.device, dtype=contents.dtype, training=False)
    table = [
        {"site": row.site, "lengths": row.lengths, "chosen": row.chosen}
        for row in plan(graph_of(contents.spec), catalogue, target)
    ]
    sites = dict(contents.requested_backends)
    active = {"flash_implementation": implementation} if (implementation := flash_implementation()) else {}
    _write_json(draft / PLAN, {"sites": sites, "device": target.device, "dtype": target.dtype, "table": table, **active})
    files = {
        name: weights.model_dump() if name == WEIGHTS else file_record(draft / name)
        for name in (SPEC, WEIGHTS, PLAN, *contents.texts)
    }
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


def _write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=1) + "\n", encoding="utf-8")
