"""Sharded tensors of a checkpoint: each process writes its shards with torch.distributed.checkpoint, as safetensors files.

Each file holds shards with their offsets, so that any number of processes can read them:
https://docs.pytorch.org/docs/stable/distributed.checkpoint.html

The reader of torch leaves elements that no file covers uninitialised, without an error. Therefore the metadata are compared
with the expected shapes first.
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
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorStorageMetadata
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from ...errors import Diagnostic, StoreError
from ...files import read_header
from .ddp_fsdp import is_sharded
from .process_group import ProcessGroup

Tensors = Mapping[str, Tensor]
Shapes = Mapping[str, Mapping[str, Sequence[int]]]
MAX_SHARDS = 10_000
"""The largest number of files of a sharded checkpoint."""
MAX_NAMED = 3
"""The largest number of tensors that a message names."""


def write_shards(folder: Path, tensors: Mapping[str, Tensors], processes: ProcessGroup) -> None:
    """Write this process's shards of tensors by file and name. Raises StoreError in all processes if one fails."""
    flat = {f"{file}/{name}": value.detach() for file, values in tensors.items() for name, value in values.items()}
    with as_store_error("TFK081", f"{folder} could not be written"):
        save(flat, storage_writer=HuggingFaceStorageWriter(str(folder), save_distributed=True), process_group=processes.group)


def read_shards(folder: Path, shapes: Shapes, like: Tensors, processes: ProcessGroup) -> dict[str, dict[str, Tensor]]:
    """Read tensors of these shapes, by file and name, from a folder. If a tensor of `like` is sharded, this process reads only
    its shard of the tensor with this name and shape, and of its moments (`NAME/KEY`). Raises StoreError, before anything is
    read, if the files do not hold exactly the whole tensors."""
    with as_store_error("TFK082", f"{folder} cannot be read"):
        reader = HuggingFaceStorageReader(str(folder))
        flat: dict[str, Tensor] = {}
        for key, facts in processes.run_on_all(lambda: _metadata(reader, folder, shapes)).items():
            name = key.split("/", 1)[1]
            model = like.get(name, like.get(name.rsplit("/", 1)[0]))
            if model is not None and is_sharded(model) and model.shape == facts.size:
                flat[key] = torch.empty_like(model, dtype=facts.properties.dtype)
            else:
                flat[key] = torch.empty(facts.size, dtype=facts.properties.dtype, device="cpu")
        load(flat, storage_reader=reader, process_group=processes.group, no_dist=processes.count == 1)
    by_file: dict[str, dict[str, Tensor]] = {}
    for key, value in flat.items():
        file, name = key.split("/", 1)
        by_file.setdefault(file, {})[name] = value
    return by_file


def _metadata(reader: HuggingFaceStorageReader, folder: Path, shapes: Shapes) -> dict[str, TensorStorageMetadata]:
    _check_headers(folder, shapes)
    with as_store_error("TFK082", f"{folder} cannot be read"):
        metadata = reader.read_metadata().state_dict_metadata
    held = {key: facts for key, facts in metadata.items() if isinstance(facts, TensorStorageMetadata)}
    expected = {f"{file}/{name}": torch.Size(shape) for file, named in shapes.items() for name, shape in named.items()}
    diagnostics = [
        diagnostic
        for key in sorted({*held, *expected})
        if (diagnostic := _incomplete(folder, key, held.get(key), expected.get(key)))
    ]
    if len(diagnostics) > MAX_NAMED:
        message = f"{folder}: {len(diagnostics) - MAX_NAMED} more tensors are not those that were written"
        diagnostics = [*diagnostics[:MAX_NAMED], Diagnostic("TFK082", message)]
    if diagnostics:
        raise StoreError(diagnostics)
    return held


def _check_headers(folder: Path, shapes: Shapes) -> None:
    """Raises StoreError for more shards or tensors than a checkpoint can have: torch reads every header whole."""
    paths = sorted(folder.glob("*.safetensors"))
    names = [f"{file}/{name}" for file, named in shapes.items() for name in named]
    if len(paths) > MAX_SHARDS:
        raise StoreError(Diagnostic("TFK082", f"{folder} has {len(paths):,} files, and at most {MAX_SHARDS:,} are read"))
    limit = (1 << 16) + sum(12 * len(name) + 1024 for name in names)  # names may be escaped, and stand in the metadata too
    for path in paths:
        if (count := len(read_header(path, limit))) > len(names):
            message = f"{path} has {count:,} tensors, and the checkpoint has {len(names):,}"
            raise StoreError(Diagnostic("TFK082", message, "it was altered"))


def _incomplete(folder: Path, key: str, held: TensorStorageMetadata | None, expected: torch.Size | None) -> Diagnostic | None:
    """The error if the shards of a tensor are incomplete. The reader would leave missing elements uninitialised."""
    file, name = key.split("/", 1) if "/" in key else ("no file", key)
    if expected is None:
        return Diagnostic("TFK082", f"{folder} holds `{name}` of {file}, which was not written there", "it was altered")
    chunks = [chunk for chunk in held.chunks if chunk.sizes.numel()] if held is not None else []
    covered = sum(chunk.sizes.numel() for chunk in chunks)
    if held is not None and held.size == expected and not _separate(chunks, expected):
        return Diagnostic("TFK082", f"{folder} holds parts of `{name}` of {file} that overlap or lie outside", "it was altered")
    if held is not None and held.size == expected and covered == expected.numel():
        return None
    message = f"{folder} does not hold the whole of `{name}` of {file}: it has {covered:,} of {expected.numel():,} elements"
    return Diagnostic("TFK082", message, "a file of another process is missing or was altered")


def _separate(chunks: Sequence[ChunkStorageMetadata], shape: torch.Size) -> bool:
    """Whether parts of a tensor lie inside of its shape and do not overlap. As many elements as it has then cover it."""
    boxes = sorted([(start, start + size) for start, size in zip(*sides, strict=True)] for sides in map(_sides, chunks))
    near: list[list[tuple[int, int]]] = []
    for box in boxes:
        if len(box) != len(shape) or any(start < 0 or end > size for (start, end), size in zip(box, shape, strict=True)):
            return False
        near = [other for other in near if not box or other[0][1] > box[0][0]]  # the others end before it starts
        for other in near:
            if all(start < last and first < end for (start, end), (first, last) in zip(box, other, strict=True)):
                return False
        near.append(box)
    return True


def _sides(chunk: ChunkStorageMetadata) -> tuple[Sequence[int], Sequence[int]]:
    return tuple(chunk.offsets), tuple(chunk.sizes)


@contextmanager
def as_store_error(code: str, message: str) -> Iterator[None]:
    """Raises StoreError for errors of torch and of the file system."""
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "torch.distributed is disabled")  # a single process may read shards
            yield
    except CheckpointException as reason:
        failures = [str(failure[0]) for failure in reason.failures.values()]
        raise StoreError(Diagnostic(code, f"{message}: {failures[0] if failures else reason}")) from None
    except (OSError, SafetensorError, KeyError, ValueError) as reason:
        raise StoreError(Diagnostic(code, f"{message}: {reason}")) from None
