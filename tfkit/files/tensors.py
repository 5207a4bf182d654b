"""The header of a safetensors file: names, dtypes and shapes, read within bounds and without torch.

https://github.com/huggingface/safetensors#format
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from math import prod
from pathlib import Path
from typing import Annotated

from pydantic import Field, RootModel, ValidationError

from ..errors import Diagnostic, StoreError
from .read import MAX_BYTES, FileModel, open_regular, parse_json, refusals

DTYPES = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "I64": "int64", "I32": "int32", "I16": "int16", "I8": "int8", "U8": "uint8", "BOOL": "bool",
}  # fmt: skip
"""The dtypes of a file by torch's names."""
_SIZES = {
    "F64": 8, "F32": 4, "F16": 2, "BF16": 2, "I64": 8, "I32": 4, "I16": 2, "I8": 1, "U8": 1, "BOOL": 1,
}  # fmt: skip
_Whole = Annotated[int, Field(ge=0, lt=1 << 63)]
FEW = 3
"""Messages name at most this many tensors."""


class _Tensor(FileModel):
    dtype: str
    shape: Annotated[list[_Whole], Field(max_length=64)]
    data_offsets: Annotated[list[_Whole], Field(min_length=2, max_length=2)]


class _Header(RootModel[dict[str, _Tensor]]):
    """The tensors of a file by name."""


class _Metadata(RootModel[dict[str, str]]):
    """The metadata of a header."""


Facts = tuple[str, tuple[int, ...]]
"""The dtype of a tensor, by torch's name, and its shape."""


def read_header(path: Path, limit: int = MAX_BYTES) -> dict[str, Facts]:
    """The tensors of a file by name. The file holds all their bytes, one tensor after the other, and no others.

    Args:
        path: The file, not a link.
        limit: Largest size of the header, in bytes.

    Raises:
        StoreError: TFK082 with the reason.
    """
    try:
        with open_regular(path, links=False) as file:
            size, length = os.fstat(file.fileno()).st_size, int.from_bytes(file.read(8), "little")
            if size < 8 or length > size - 8:
                raise ValueError(f"its header should have {length:,} bytes, the file has {size:,}")
            if length > limit:
                raise ValueError(f"its header has {length:,} bytes, and at most {limit:,} are expected")
            data = parse_json(file.read(length), depth=4)
        if not isinstance(data, dict):
            raise ValueError("its header is not an object")
        _Metadata.model_validate(data.pop("__metadata__", {}))
        tensors = _Header.model_validate(data).root
        _check_places(tensors, size - 8 - length)
    except OSError as reason:
        raise StoreError(Diagnostic("TFK082", f"{path} cannot be read: {reason.strerror}")) from None
    except ValidationError as error:
        raise _damaged(path, f"its header: {refusals(error)[0]}") from None
    except ValueError as reason:
        raise _damaged(path, str(reason)) from None
    return {name: (DTYPES[each.dtype], tuple(each.shape)) for name, each in tensors.items()}


def _check_places(tensors: Mapping[str, _Tensor], size: int) -> None:
    """Raises ValueError unless the tensors fill the bytes behind the header."""
    end = 0
    for name, each in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        if each.dtype not in DTYPES:
            raise ValueError(f"`{name[:80]}` has the unknown dtype {each.dtype[:20]!r}")
        needed, (start, stop) = prod(each.shape) * _SIZES[each.dtype], each.data_offsets
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


def compare_tensors(path: Path, found: Mapping[str, Facts], wanted: Mapping[str, Facts], whose: str) -> None:
    """Raises StoreError if names, dtypes or shapes of the tensors of a file differ from those that `whose` needs."""
    wrong = [name for name in sorted({*found, *wanted}) if found.get(name) != wanted.get(name)]
    diagnostics = [
        Diagnostic(
            "TFK082",
            f"{path}: `{name}` is {_shown(found.get(name), 'missing')}, {whose} needs {_shown(wanted.get(name), 'none')}",
        )
        for name in wrong[:FEW]
    ]
    if len(wrong) > FEW:
        diagnostics.append(Diagnostic("TFK082", f"{path}: {len(wrong) - FEW} more tensors are not those that {whose} needs"))
    if diagnostics:
        raise StoreError(diagnostics)


def _shown(facts: Facts | None, without: str) -> str:
    return without if facts is None else f"{facts[1]} {facts[0]}"
