"""The tensors of a checkpoint of which every process writes its share: torch's distributed checkpoints, in safetensors files.

Each file holds shares with their places in the whole, so that any number of processes, one included, can read them:
https://docs.pytorch.org/docs/stable/distributed.checkpoint.html
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors import SafetensorError
from torch import Tensor
from torch.distributed.checkpoint.api import CheckpointException
from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader, HuggingFaceStorageWriter
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from ...errors import Diagnostic, StoreError
from .ddp_fsdp import is_sharded
from .process_group import ProcessGroup

Tensors = Mapping[str, Tensor]
Shapes = Mapping[str, Mapping[str, Sequence[int]]]
FEW = 3
"""So many tensors are named one by one."""


def write_shards(folder: Path, tensors: Mapping[str, Tensors], processes: ProcessGroup) -> None:
    """Write every process's shares of tensors by file. Raises StoreError in all of them where one could not."""
    flat = {f"{file}/{name}": value.detach() for file, values in tensors.items() for name, value in values.items()}
    with as_store_error("TFK081", f"{folder} could not be written"):
        save(flat, storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True), process_group=processes.group)


def read_shards(folder: Path, shapes: Shapes, like: Tensors, processes: ProcessGroup) -> dict[str, dict[str, Tensor]]:
    """The tensors by file. Each is whole, or this process's share where a tensor `like` it, of the same name (or of the name
    before its last part, as moments are of a parameter) and shape, is sharded. Raises StoreError, before any is read, where the
    files do not hold the whole of every tensor of these `shapes`, and no others."""
    with as_store_error("TFK082", f"{folder} cannot be read"):
        reader = HuggingFaceStorageReader(str(folder))
        flat: dict[str, Tensor] = {}
        for key, facts in processes.each(lambda: _metadata(reader, folder, shapes)).items():
            name = key.split("/", 1)[1]
            model = like.get(name, like.get(name.rsplit("/", 1)[0]))
            if model is not None and is_sharded(model) and model.shape == facts.size:
                flat[key] = torch.empty_like(model, dtype=facts.properties.dtype)
            else:
                flat[key] = torch.empty(facts.size, dtype=facts.properties.dtype)
        load(flat, storage_reader=reader, process_group=processes.group, no_dist=processes.count == 1)
    found: dict[str, dict[str, Tensor]] = {}
    for key, value in flat.items():
        file, name = key.split("/", 1)
        found.setdefault(file, {})[name] = value
    return found


def _metadata(reader: HuggingFaceStorageReader, folder: Path, shapes: Shapes) -> dict[str, TensorStorageMetadata]:
    with as_store_error("TFK082", f"{folder} cannot be read"):
        found = reader.read_metadata().state_dict_metadata
    held = {key: facts for key, facts in found.items() if isinstance(facts, TensorStorageMetadata)}
    wanted = {f"{file}/{name}": torch.Size(shape) for file, named in shapes.items() for name, shape in named.items()}
    diagnostics = [
        diagnostic for key in sorted({*held, *wanted}) if (diagnostic := _unheld(folder, key, held.get(key), wanted.get(key)))
    ]
    if len(diagnostics) > FEW:
        message = f"{folder}: {len(diagnostics) - FEW} more tensors are not those that were written"
        diagnostics = [*diagnostics[:FEW], Diagnostic("TFK082", message)]
    if diagnostics:
        raise StoreError(diagnostics)
    return held


def _unheld(folder: Path, key: str, held: TensorStorageMetadata | None, wanted: torch.Size | None) -> Diagnostic | None:
    """What is wrong with the shares of a tensor. The reader would leave what none of them covers as it is in memory."""
    file, name = key.split("/", 1) if "/" in key else ("no file", key)
    if wanted is None:
        return Diagnostic("TFK082", f"{folder} holds `{name}` of {file}, which was not written there", "it was altered")
    there = sum(chunk.sizes.numel() for chunk in held.chunks) if held is not None else 0
    if held is not None and held.size == wanted and there == wanted.numel():
        return None
    message = f"{folder} does not hold the whole of `{name}` of {file}: {there:,} of its {wanted.numel():,} numbers are there"
    return Diagnostic("TFK082", message, "a file of another process is missing or was altered")


@contextmanager
def as_store_error(code: str, message: str) -> Iterator[None]:
    """What goes wrong with the files as a fault. Raises StoreError."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # one process reads them too
            yield
    except CheckpointException as reason:
        failures = [str(failure[0]) for failure in reason.failures.values()]
        raise StoreError(Diagnostic(code, f"{message}: {failures[0] if failures else reason}")) from None
    except (OSError, SafetensorError, KeyError, ValueError) as reason:
        raise StoreError(Diagnostic(code, f"{message}: {reason}")) from None
