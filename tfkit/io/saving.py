"""Save a model into a directory, atomically and without pickle."""

from __future__ import annotations

import json
import platform
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ..catalogue import Catalogue, load_catalogue
from ..files import Content, FileRecord, child, file_record, write_content
from ..graph import Target, graph_of, plan
from ..graph.flash_implementation import flash_implementation
from ..nn.model import Model
from ..slots.options import CONTRACT
from ..spec import ModelSpec, to_yaml
from .layout import ADAPTER, FORMAT, PLAN, SPEC, VERSIONS, WEIGHTS
from .replacing import check_place, write_directory
from .saveable import check_described


def save(
    model: Model,
    directory: str | Path,
    *,
    overwrite: bool = False,
    catalogue: Catalogue | None = None,
    texts: Mapping[str, Content] | None = None,
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
        StoreError: the directory exists, or cannot be written; or the model is not what its spec describes (adapters,
            parametrised or pruned weights, added tensors, replaced modules), so that it could not be loaded. The content of the
            directory is unchanged.
    """
    model = getattr(model, "_orig_mod", model)  # the model inside torch.compile's wrapper
    directory = Path(directory).absolute()
    check_place(directory, overwrite)
    state = check_described(model)
    catalogue = catalogue or load_catalogue()
    first = next(model.parameters(), None)
    device, dtype = (first.device.type, first.dtype) if first is not None else ("cpu", torch.float32)

    def write_weights(path: Path) -> FileRecord:
        save_file({name: tensor.detach().contiguous() for name, tensor in state.items()}, path)
        return FileRecord(**file_record(path))

    dtypes = {name: str(tensor.dtype).removeprefix("torch.") for name, tensor in state.items() if tensor.dtype != dtype}
    contents = ModelFiles(
        model.spec,
        model.requested_backends,
        device,
        str(dtype).removeprefix("torch."),
        dict(texts or {}),
        write_weights,
        dtypes,
    )
    return write_model(contents, directory, catalogue, overwrite=overwrite)


@dataclass(frozen=True)
class ModelFiles:
    """What the directory of a model is written from.

    Args:
        spec: the spec of the model.
        requested_backends: by attention site, as a spec writes them.
        device: the device that the plan is for.
        dtype: the dtype of the weights, by torch's name: that of the first one.
        texts: further files, by name.
        write_weights: writes the weights into a new file, and returns its size and digest.
        dtypes: the dtypes of weights that have another one, by name.
        base: for an adapter, which `write_weights` writes instead of weights: those of its base model.
    """

    spec: ModelSpec
    requested_backends: Mapping[str, list[Any]]
    device: str
    dtype: str
    texts: Mapping[str, Content]
    write_weights: Callable[[Path], FileRecord]
    dtypes: Mapping[str, str] = field(default_factory=dict)
    base: FileRecord | None = None


def write_model(contents: ModelFiles, directory: Path, catalogue: Catalogue, *, overwrite: bool = False) -> Path:
    """Write the directory of a model under another name, then rename it. Arguments and errors as in `save`."""
    directory = directory.absolute()
    check_place(directory, overwrite)
    write_directory(directory, lambda draft: _write(contents, draft, catalogue))
    return directory


def _write(contents: ModelFiles, draft: Path, catalogue: Catalogue) -> None:
    for name, text in contents.texts.items():
        if name in (SPEC, WEIGHTS, PLAN, VERSIONS, ADAPTER):
            raise ValueError(f"`texts` may not have the name {name}, which every saved model has")
        write_content(child(draft, name), text)
    (draft / SPEC).write_text(to_yaml(contents.spec), encoding="utf-8")
    weights_file = WEIGHTS if contents.base is None else ADAPTER
    weights = contents.write_weights(draft / weights_file)
    target = Target(device=contents.device, dtype=contents.dtype, training=False)
    table = [
        {"site": row.site, "lengths": row.lengths, "chosen": row.chosen}
        for row in plan(graph_of(contents.spec), catalogue, target)
    ]
    sites = dict(contents.requested_backends)
    active = {"flash_implementation": implementation} if (implementation := flash_implementation()) else {}
    _write_json(draft / PLAN, {"sites": sites, "device": target.device, "dtype": target.dtype, "table": table, **active})
    files = {
        name: weights.model_dump() if name == weights_file else file_record(draft / name)
        for name in (SPEC, weights_file, PLAN, *contents.texts)
    }
    plugins = {distribution: version for _, distribution, version in catalogue.plugins}
    _write_json(
        draft / VERSIONS,
        {
            "format": FORMAT,
            "contract": CONTRACT,
            "dtype": target.dtype,
            **({"dtypes": dict(contents.dtypes)} if contents.dtypes else {}),
            "python": platform.python_version(),
            "torch": torch.__version__,
            "plugins": plugins,
            "files": files,
            **({"base": contents.base.model_dump()} if contents.base is not None else {}),
        },
    )


def _write_json(path: Path, data: Any) -> None:
    path.write_text(json.dumps(data, indent=1, allow_nan=False) + "\n", encoding="utf-8")
