"""Save a model into a directory, atomically and without pickle."""

from __future__ import annotations

import json
import platform
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

from ..catalogue import Catalogue, load_catalogue
from ..errors import Diagnostic, StoreError
from ..files import child, file_record
from ..graph import Target, graph_of, plan
from ..nn.model import Model
from ..slots.options import CONTRACT
from ..spec import to_yaml
from .layout import FORMAT, PLAN, SPEC, VERSIONS, WEIGHTS
from .replacing import check_place, write_directory


def save(
    model: Model,
    directory: str | Path,
    *,
    overwrite: bool = False,
    catalogue: Catalogue | None = None,
    texts: Mapping[str, str] | None = None,
) -> Path:
    """Save a model. The directory is written under another name and then renamed, so that it is never incomplete.

    Args:
        model: a built model.
        directory: the directory to create.
        overwrite: replace a saved model, if its directory contains only files that tfkit wrote.
        catalogue: the entries of the spec; those of the installed plugins by default.
        texts: further files that belong to the model (tokenisers), by name.

    Returns:
        The absolute path of the directory.

    Raises:
        StoreError: the directory exists, or cannot be written. Its content is unchanged.
    """
    model = getattr(model, "_orig_mod", model)  # the model inside torch.compile's wrapper
    directory = Path(directory).absolute()
    check_place(directory, overwrite)
    empty = [name for name, tensor in model.state_dict().items() if tensor.is_meta]
    if empty:
        message = f"`{empty[0]}` and {len(empty) - 1} more are on the meta device and have no values"
        raise StoreError(Diagnostic("TFK081", message, "build the model on another device"))
    loaded, other = catalogue or load_catalogue(), texts or {}
    write_directory(directory, lambda draft: _write(model, draft, loaded, other))
    return directory


def _write(model: Model, draft: Path, catalogue: Catalogue, texts: Mapping[str, str]) -> None:
    for name, text in texts.items():
        if name in (SPEC, WEIGHTS, PLAN, VERSIONS):
            raise ValueError(f"`texts` may not have the name {name}, which every saved model has")
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
    _write_json(
        draft / PLAN, {"sites": model.requested_backends, "device": target.device, "dtype": target.dtype, "table": table}
    )
    files = {name: file_record(draft / name) for name in (SPEC, WEIGHTS, PLAN, *texts)}
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
