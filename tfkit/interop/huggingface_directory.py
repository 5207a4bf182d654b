"""A directory of Hugging Face transformers: its configuration, its tensors, its other files. Headers are read first, no torch.

The directory is not trusted: no link is followed, sizes are bounded, nothing is unpickled unless the caller asks for it.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import model_validator

from ..errors import Diagnostic, InputError, StoreError
from ..files import FileModel, FileRoot, Place, child, open_regular, read_model, read_places
from .pickled_weights import load_pickled
from .views import Array

CONFIG, GENERATION = "config.json", "generation_config.json"
WEIGHTS, INDEX = "model.safetensors", "model.safetensors.index.json"
PICKLED, PICKLED_INDEX = "pytorch_model.bin", "pytorch_model.bin.index.json"
BITS = {
    "float64": np.uint64, "float32": np.uint32, "float16": np.uint16, "bfloat16": np.uint16, "int64": np.int64,
    "int32": np.int32, "int16": np.int16,
}  # fmt: skip
"""Elements are moved as bits, so that no dtype is ever rounded."""
LARGEST_HEADER = 64 << 20
"""The size limit of the header of one file of tensors, in bytes."""
ADAPTER = "adapter_config.json"
OTHER_WEIGHTS = (".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".gguf", ".onnx")
"""The ends of names of files that may hold weights in another form, or under another name."""
NAME_IT = "name a directory that `save_pretrained` of Hugging Face transformers wrote"


class _Object(FileRoot[dict[str, Any]]):
    """Any object."""


class _Config(FileRoot[dict[str, Any]]):
    """A configuration, whose keys of every model have their types."""

    @model_validator(mode="after")
    def _typed(self) -> _Config:
        kinds = {"architectures": list, "model_type": str, "id2label": dict, "label2id": dict}
        for key, kind in kinds.items():
            value = self.root.get(key)
            if value is not None and not isinstance(value, kind):
                raise ValueError(f"`{key}` is no {WORDS[kind]}")
        if any(not isinstance(name, str) for name in self.root.get("architectures") or ()):
            raise ValueError("`architectures` is no list of names")
        return self


WORDS = {list: "list", str: "text", dict: "object"}


INDEX_VALUES = 200_000
"""Tensors that an index lists; the largest models have about 100,000."""
LARGEST_INDEX = 32 << 20
"""The size limit of an index, in bytes."""


class Index(FileModel):
    """The file of every tensor. Other keys of the file are not read."""

    model_config = {"extra": "ignore", "frozen": True}
    weight_map: dict[str, str]


def _is_plain(value: Any) -> bool:
    """Whether a value is a tensor that holds its numbers one after another, on the CPU."""
    import torch

    return (
        isinstance(value, torch.Tensor)
        and value.device.type == "cpu"
        and value.layout is torch.strided
        and not value.is_nested
        and not value.is_quantized
    )


def _form_of(value: Any) -> str:
    import torch

    if not isinstance(value, torch.Tensor):
        return f"a {type(value).__name__}"
    kind = "quantised" if value.is_quantized else "nested" if value.is_nested else str(value.layout).removeprefix("torch.")
    return f"a {kind} tensor on {value.device.type}"


def _why_unread(reason: Exception) -> str:
    """What torch's reader of weights found in a file."""
    text = " ".join(str(reason).split())
    if other := re.search(r"Unsupported (?:global|class|operand)[^:]*: (?:GLOBAL )?([\w.]+)", text):
        return f"holds more than weights: it asks for `{other[1][:80]}`, which is not run"
    if isinstance(reason, (ValueError, OSError)) and not isinstance(reason, UnicodeDecodeError):
        return f"is no file of torch.save that can be read: {text[:200]}"
    return "is no file that torch.save wrote, or was cut off"


def _download(path: Path) -> str:
    """How to get the files of a model, if the name of no directory may be the id of one on the Hugging Face hub."""
    if os.path.lexists(path) or not re.fullmatch(r"(?:\w[\w.-]*/)?\w[\w.-]*", str(path)):
        return ""
    model = str(path) if "/" in str(path) else f"OWNER/{path}"
    return f", or download a model: hf download {model} --local-dir {path.name}"


def _names(path: Path) -> list[str]:
    """The names in a directory, at most 1,000; none if it cannot be read."""
    try:
        with os.scandir(path) as entries:
            return [entry.name for entry in islice(entries, 1_000)]
    except OSError:
        return []


def _where_else(path: Path) -> str:
    """What to do with a directory without a configuration: it holds an adapter, or directories of models."""
    if os.path.lexists(path / ADAPTER):
        return "it holds an adapter of peft: merge it into its base model (`merge_and_unload`), and `save_pretrained` that"
    below = [path / name for name in sorted(_names(path))]
    below += [one / name for one in below if one.name == "snapshots" for name in sorted(_names(one))]  # a cache of downloads
    models = [str(one) for one in below if os.path.lexists(one / CONFIG)]
    return f"name a directory below it: {', '.join(models[:3])}" if models else NAME_IT


class HuggingFaceDirectory:
    """The files of a model. With `allow_pickle`, `pytorch_model.bin` is read with torch's reader of weights where there are no
    safetensors. Raises InputError if it is not such a directory, and StoreError if a file is damaged, missing, a link, or
    pickled."""

    def __init__(self, path: Path, allow_pickle: bool = False) -> None:
        self.path = path
        if not path.is_dir():
            raise InputError(Diagnostic("TFK141", f"{path} is no directory", f"{NAME_IT}{_download(path)}"))
        if not os.path.lexists(path / CONFIG):
            raise InputError(Diagnostic("TFK141", f"{path} has no {CONFIG}", _where_else(path)))
        self.config = read_model(self._file(CONFIG), _Config, fix=NAME_IT).root
        self.generation = self._object(GENERATION) if os.path.lexists(path / GENERATION) else None
        self.shards: dict[str, dict[str, Place]] = {}
        self.pickled = False
        if any(os.path.lexists(path / name) for name in (WEIGHTS, INDEX)):
            self._read_headers()
        elif any(os.path.lexists(path / name) for name in (PICKLED, PICKLED_INDEX)):
            if not allow_pickle:
                fix = "write it again with `save_pretrained`, or pass --allow-pickle (then torch reads weights only)"
                message = f"{path} has only pickled weights, and unpickling may run code"
                raise StoreError(Diagnostic("TFK143", message, fix))
            self.pickled = True
        else:
            others = sorted(name for name in _names(path) if name.endswith(OTHER_WEIGHTS))
            beside = f"; it has {', '.join(others[:3])}, which is not read" if others else ""
            fix = f"weights are in {WEIGHTS}, or in the files of {INDEX}; get these, or write them with `save_pretrained`"
            raise StoreError(Diagnostic("TFK143", f"{path} has neither {WEIGHTS} nor {INDEX}{beside}", fix))

    def _object(self, name: str) -> dict[str, Any]:
        return read_model(self._file(name), _Object, fix=NAME_IT).root

    def object_if_there(self, name: str) -> dict[str, Any]:
        """The object in another file, empty if there is no such file. Raises StoreError."""
        return self._object(name) if os.path.lexists(self.path / name) else {}

    def _file(self, name: str) -> Path:
        try:
            return child(self.path, name)
        except ValueError as reason:
            fix = "copy the directory with `cp -rL`, which copies files instead of links"
            raise StoreError(Diagnostic("TFK143", str(reason), fix)) from None

    def _read_headers(self) -> None:
        if not os.path.lexists(self.path / INDEX):
            self.shards[WEIGHTS] = read_places(self._file(WEIGHTS), LARGEST_HEADER)
            return
        listed = read_model(self._file(INDEX), Index, limit=LARGEST_INDEX, values=INDEX_VALUES).weight_map
        problems: list[str] = []
        enough = 20  # so many are shown, and no further file is read
        by_file: dict[str, set[str]] = {}
        for tensor, shard in listed.items():
            by_file.setdefault(shard, set()).add(tensor)
        for name, here in sorted(by_file.items()):
            if len(problems) >= enough:
                break
            if "/" in name or "\\" in name:
                message = f"{self.path / INDEX}: the file of `{min(here)}` is `{name[:80]}`, not the plain name of a file"
                raise StoreError(Diagnostic("TFK143", message, "an index names files beside it"))
            if not os.path.lexists(self._file(name)):
                problems.append(f"{self.path / INDEX} names {name}, which does not exist")
                continue
            self.shards[name] = read_places(self._file(name), LARGEST_HEADER)
            for what, names in (
                ("is listed for", here - set(self.shards[name])),
                ("is not listed for", set(self.shards[name]) - here),
            ):
                word = "does not hold it" if what == "is listed for" else "holds it"
                problems += [f"{self.path / INDEX}: `{tensor}` {what} {name}, which {word}" for tensor in sorted(names)]
        if problems:
            fix = "the download is not complete, or mixes two models: get the files of the index again"
            raise StoreError([Diagnostic("TFK143", problem, fix) for problem in problems[:enough]])
        if os.path.lexists(self.path / WEIGHTS) and WEIGHTS not in listed.values():
            message = f"{self.path} has {WEIGHTS} and the files of {INDEX}, which may hold two models"
            raise StoreError(Diagnostic("TFK143", message, "remove those that are not the model's"))

    @cached_property
    def places(self) -> dict[str, tuple[str, Place]]:
        """Every tensor: its file and its place there."""
        if self.pickled:
            return {
                name: (PICKLED, Place(str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape), 0, tensor.nbytes))
                for name, tensor in self._unpickled.items()
            }
        return {name: (shard, place) for shard, places in self.shards.items() for name, place in places.items()}

    @cached_property
    def _unpickled(self) -> Mapping[str, Any]:
        names = [PICKLED]
        if os.path.lexists(self.path / PICKLED_INDEX):
            names = sorted(set(read_model(self._file(PICKLED_INDEX), Index, values=INDEX_VALUES).weight_map.values()))
        tensors: dict[str, Any] = {}
        for name in names:
            try:
                tensors |= load_pickled(self._file(name))
            except StoreError:
                raise
            except Exception as reason:  # the unpickler raises many kinds
                message = f"{self.path / name} {_why_unread(reason)}"
                raise StoreError(Diagnostic("TFK143", message, "get the weights alone: safetensors")) from None
        if other := next((name for name in tensors if not isinstance(name, str)), None):
            message = f"{self.path}: the pickled weights have a name that is no text: {str(other)[:80]}"
            raise StoreError(Diagnostic("TFK143", message, "write the weights alone: `torch.save(model.state_dict(), FILE)`"))
        if other := next((name for name, value in tensors.items() if not _is_plain(value)), None):
            form = _form_of(tensors[other])
            message = f"{self.path}: `{str(other)[:80]}` of the pickled weights is {form}, no tensor with its numbers"
            raise StoreError(Diagnostic("TFK143", message, "write the weights alone: `torch.save(model.state_dict(), FILE)`"))
        if other := next((name for name, value in tensors.items() if value.nbytes > value.untyped_storage().nbytes()), None):
            message = f"{self.path}: `{other[:80]}` of the pickled weights is a view that repeats the numbers of the file"
            raise StoreError(Diagnostic("TFK143", message, "write it as it is: `tensor.contiguous()`"))
        return tensors

    def file_of(self, name: str) -> Path:
        """The file of a tensor."""
        return self.path / self.places[name][0]

    def read(self, name: str) -> Array:
        """The bits of a tensor, as whole numbers of the size of its elements."""
        file, place = self.places[name]
        bits = BITS.get(place.dtype, np.uint8)
        if self.pickled:
            import torch

            whole = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}[np.dtype(bits).itemsize]
            return self._unpickled[name].contiguous().view(whole).numpy().view(bits)  # type: ignore[no-any-return]
        with open_regular(self._file(file), links=False) as opened:
            opened.seek(place.start)
            data = np.fromfile(opened, np.uint8, place.bytes)
        if data.nbytes != place.bytes:
            raise StoreError(Diagnostic("TFK143", f"{self.path / file} was cut off while it was read"))
        return data.view(bits).reshape(place.shape)
