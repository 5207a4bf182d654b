"""Tensors of an imported directory that no parameter holds: buffers, and tables of sinusoids with other last bits than ours.

They stand in one file of the model, so that an export returns the bytes that came in.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from safetensors import SafetensorError
from safetensors.torch import load, save
from torch import Tensor

from ..errors import Diagnostic, StoreError
from ..files import Content, content_bytes
from ..files.tensors import DTYPES
from .huggingface_directory import HuggingFaceDirectory

KEPT_FILE = "huggingface.safetensors"
"""The file of an imported model that holds them."""
LARGEST = 64 << 20
"""At most this many bytes of buffers are kept; masks and tables of positions are smaller."""
LARGEST_FILE = 1 << 30
"""The size limit of the file, in bytes."""


def pack(directory: HuggingFaceDirectory, tables: list[str], buffers: list[str]) -> bytes | None:
    """The content of the file: tables, and buffers if they are not larger than `LARGEST`. Those with NaN or infinite numbers
    are left out, because no command reads them back. None for no tensors."""
    small = sum(directory.places[name][1].bytes for name in buffers) <= LARGEST
    names = [*tables, *(buffers if small else ())]
    dtypes = {name: getattr(torch, directory.places[name][1].dtype) for name in names}
    tensors = {name: torch.from_numpy(directory.read(name)).view(dtype) for name, dtype in dtypes.items()}
    tensors = {name: tensor for name, tensor in tensors.items() if _finite(tensor)}
    return save(tensors) if tensors else None


def _finite(tensor: Tensor) -> bool:
    return not tensor.is_floating_point() or bool(tensor.isfinite().all())


def unpack(texts: Mapping[str, Content]) -> dict[str, Tensor]:
    """The tensors by name, from the files of a model. Raises StoreError for an altered file."""
    content = texts.get(KEPT_FILE, b"")
    try:
        tensors = load(content_bytes(content, LARGEST_FILE)) if content else {}
    except (SafetensorError, KeyError) as reason:  # a KeyError names a dtype that torch does not have
        raise StoreError(altered(str(reason))) from None
    for name, tensor in tensors.items():
        if (dtype := str(tensor.dtype).removeprefix("torch.")) not in DTYPES.values():
            raise StoreError(altered(f"{name[:80]} is {dtype}, which no import writes"))
        if not _finite(tensor):
            raise StoreError(altered(f"{name[:80]} holds NaN or infinite numbers"))
    return tensors


def altered(reason: str) -> Diagnostic:
    return Diagnostic("TFK082", f"{KEPT_FILE}: {reason}", "it was altered; import the model again")
