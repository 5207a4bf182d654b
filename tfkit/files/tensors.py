"""safetensors files without torch: names, dtypes and shapes are read within bounds; files are written tensor by tensor.

https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, ValidationError

from ..errors import Diagnostic, StoreError
from .listing import FileRecord
from .read import MAX_BYTES, FileModel, FileRoot, open_regular, parse_json, refusals

DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
"""The dtypes of a file by torch's names."""
_SIZES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
OTHER_DTYPES = frozenset({
    "F8_E4M3", "F8_E5M2", "F8_E4M3FNUZ", "F8_E5M2FNUZ", "F8_E8M0", "F6_E2M3", "F6_E3M2", "F4", "F4_E2M1", "U16", "U32", "U64",
    "C64",
})  # fmt: skip
"""Further dtypes of the format."""
_RANK = ("I64", "F64", "F32", "I32", "BF16", "F16", "I8", "U8", "BOOL")
"""The order of dtypes in a file that the library writes."""
_Whole = Annotated[int, Field(ge=0, lt=1 << 63)]
SYNC = 64 << 20
"""So many bytes are written before they go to the disk."""
MAX_VALUES = 1_000_000
"""Values of a header; a tensor has about nine."""
MAX_NAMED = 3
"""Messages name at most this many tensors."""


class _Tensor(FileModel):
    dtype: str
    shape: Annotated[list[_Whole], Field(max_length=64)]
    data_offsets: Annotated[list[_Whole], Field(min_length=2, max_length=2)]


class _Header(FileRoot[dict[str, _Tensor]]):
    """The tensors of a file by name."""


class _Metadata(FileRoot[dict[str, str]]):
    """The metadata of a header."""


Facts = tuple[str, tuple[int, ...]]
"""The dtype of a tensor, by torch's name, and its shape."""


@dataclass(frozen=True)
class Place:
    """A tensor in a file: dtype by torch's name, shape, and its bytes from the start of the file."""

    dtype: str
    shape: tuple[int, ...]
    start: int
    bytes: int


def read_header(path: Path, limit: int = MAX_BYTES) -> dict[str, Facts]:
    """The tensors of a file by name. Arguments as in `read_places`. Raises StoreError."""
    return {name: (place.dtype, place.shape) for name, place in read_places(path, limit).items()}


def read_places(path: Path, limit: int = MAX_BYTES) -> dict[str, Place]:
    """Where the tensors of a file are. The file holds all their bytes, one tensor after the other, and no others.

    Args:
        path: The file, not a link.
        limit: Largest size of the header, in bytes.

    Raises:
        StoreError: TFK082 with the reason.
    """
    try:
        with open_regular(path, links=False) as file:
            size, begins = os.fstat(file.fileno()).st_size, file.read(8)
            length = int.from_bytes(begins, "little")
            if begins == b"version ":  # https://git-lfs.github.com/spec/v1
                raise ValueError("it is a pointer of Git LFS, and the file itself was not downloaded: `git lfs pull`")
            if size < 8 or length > size - 8:
                raise ValueError(f"its header should have {length:,} bytes, the file has {size:,}")
            if length > limit:
                raise ValueError(f"its header has {length:,} bytes, and at most {limit:,} are expected")
            data = parse_json(file.read(length), depth=4, values=MAX_VALUES)
        if not isinstance(data, dict):
            raise ValueError("its header is not an object")
        _Metadata.model_validate(data.pop("__metadata__", {}))
        tensors = _Header.model_validate(data).root
        if other := next((name for name, tensor in tensors.items() if tensor.dtype in OTHER_DTYPES), None):
            message = f"{path}: `{other[:80]}` is of {tensors[other].dtype}, and weights of quantised models are not read"
            raise StoreError(Diagnostic("TFK082", message, "save the model in float32, bfloat16 or float16"))
        _check_places(tensors, size - 8 - length)
    except OSError as reason:
        raise StoreError(Diagnostic("TFK082", f"{path} cannot be read: {reason.strerror}")) from None
    except ValidationError as error:
        raise _damaged(path, f"its header: {refusals(error)[0]}") from None
    except ValueError as reason:
        raise _damaged(path, str(reason)) from None
    begin = 8 + length
    return {
        name: Place(
            DTYPES[tensor.dtype], tuple(tensor.shape), begin + tensor.data_offsets[0], prod(tensor.shape) * _SIZES[tensor.dtype]
        )
        for name, tensor in tensors.items()
    }


def write_tensors(
    path: Path, tensors: Mapping[str, Facts], read: Callable[[str], Any], metadata: Mapping[str, str] | None = None
) -> FileRecord:
    """Write a file one tensor after the other, in the bytes that the safetensors library writes.

    Args:
        path: The new file.
        tensors: Dtype and shape by name.
        read: Gives the bytes of a tensor, in the byte order of the format (little endian). It runs in another thread, and one
            call at a time.
        metadata: For the header.

    Returns:
        Size and SHA-256 of the file.

    Raises:
        OSError: The file cannot be written.
        ValueError: A tensor has another number of bytes than its dtype and shape say.
    """
    import hashlib  # few commands need these two
    from concurrent.futures import Future, ThreadPoolExecutor

    codes = {name: code for code, name in DTYPES.items()}
    names = sorted(tensors, key=lambda name: (_RANK.index(codes[tensors[name][0]]), name))
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    end = 0
    for name in names:
        dtype, shape = tensors[name]
        start, end = end, end + prod(shape) * _SIZES[codes[dtype]]
        header[name] = {"dtype": codes[dtype], "shape": list(shape), "data_offsets": [start, end]}
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False, allow_nan=False).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()

    def load(name: str) -> memoryview:
        data = memoryview(read(name)).cast("B")
        start, stop = header[name]["data_offsets"]
        if data.nbytes != stop - start:
            raise ValueError(f"`{name}` has {data.nbytes:,} bytes, and its shape needs {stop - start:,}")
        return data

    # While a tensor is written, other threads read the next one, compute the digest, and sync what was written before.
    with open(path, "xb") as file, ThreadPoolExecutor(3) as threads:
        begin = len(text).to_bytes(8, "little") + text
        file.write(begin)
        hashed = threads.submit(digest.update, begin)
        synced: Future[None] | None = None
        unsynced = 0
        loaded = [threads.submit(load, name) for name in names[:1]]
        for number in range(len(names)):
            data = loaded.pop().result()
            loaded += [threads.submit(load, name) for name in names[number + 1 : number + 2]]
            hashed.result()
            hashed = threads.submit(digest.update, data)
            file.write(data)
            unsynced += data.nbytes
            if unsynced > SYNC and (synced is None or synced.done()):
                if synced:
                    synced.result()  # an error of the disk is reported only once
                synced, unsynced = threads.submit(os.fdatasync, file.fileno()), 0
        for future in filter(None, (hashed, synced)):
            future.result()
        return FileRecord(bytes=file.tell(), sha256=digest.hexdigest())


def _check_places(tensors: Mapping[str, _Tensor], size: int) -> None:
    """Raises ValueError unless the tensors fill the bytes behind the header."""
    end = 0
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        if tensor.dtype not in DTYPES:
            raise ValueError(f"`{name[:80]}` has the unknown dtype {tensor.dtype[:20]!r}")
        needed, (start, stop) = prod(tensor.shape) * _SIZES[tensor.dtype], tensor.data_offsets
        if start != end or stop - start != needed:
            message = f"`{name[:80]}` needs {needed:,} bytes from byte {end:,} on, but has bytes {start:,} to {stop:,}"
            raise ValueError(message)
        end = stop
    if end != size:
        raise ValueError(f"its tensors have {end:,} bytes, but the file holds {size:,}")


def _damaged(path: Path, reason: str) -> StoreError:
    return StoreError(Diagnostic("TFK082", f"{path} holds no tensors that can be read: {reason}", "it was altered or cut off"))


def check_header(path: Path, wanted: Mapping[str, Facts], whose: str) -> None:
    """Raises StoreError unless a file has exactly these tensors. `whose` names the source of `wanted` in messages ("the spec").

    It reads only the header, up to the largest size that a header of these tensors can have.
    """
    limit = (1 << 16) + sum(6 * len(name) + 256 for name in wanted)  # 6: a character may be written as \uXXXX
    compare_tensors(path, read_header(path, limit), wanted, whose)


def compare_tensors(path: Path, actual: Mapping[str, Facts], wanted: Mapping[str, Facts], whose: str) -> None:
    """Raises StoreError if names, dtypes or shapes of the tensors of a file differ from those that `whose` needs."""
    wrong = [name for name in sorted({*actual, *wanted}) if actual.get(name) != wanted.get(name)]
    diagnostics = [
        Diagnostic(
            "TFK082",
            f"{path}: `{name}` is {_shown(actual.get(name), 'missing')}, {whose} needs {_shown(wanted.get(name), 'none')}",
        )
        for name in wrong[:MAX_NAMED]
    ]
    if len(wrong) > MAX_NAMED:
        diagnostics.append(
            Diagnostic("TFK082", f"{path}: {len(wrong) - MAX_NAMED} more tensors are not those that {whose} needs")
        )
    if diagnostics:
        raise StoreError(diagnostics)


def not_finite(path: Path, name: str, nan: int, infinite: int, count: int) -> Diagnostic:
    """The error about a tensor of a file, of whose `count` numbers some are NaN or infinite."""
    kinds = [f"{number:,} {word}" for number, word in ((nan, "NaN"), (infinite, "infinite")) if number]
    return Diagnostic("TFK084", f"{path}: of the {count:,} numbers of `{name[:200]}`, {' and '.join(kinds)}")


def _shown(facts: Facts | None, without: str) -> str:
    return without if facts is None else f"{facts[1]} {facts[0]}"
