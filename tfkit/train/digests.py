"""Digests of the inputs of a run, by name, in `digests.json`: the recipe, the spec, the corpora, the tokenisers, the pretrained
weights. A run resumes only with equal inputs.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

from ..data import TRAIN, VALIDATION, Data
from ..errors import Diagnostic, StoreError
from ..files import FileRoot, file_record, read_model, write_whole
from ..recipe import Recipe
from .pretrained import Pretrained
from .run_files import DATA, DIGESTS, SPEC
from .run_recipe import fixed_settings

FILES = {"spec": SPEC, "training data": f"{DATA}/{TRAIN}", "validation data": f"{DATA}/{VALIDATION}"}
"""The files with a digest, by its name."""
PRETRAINED = "pretrained weights"
"""The name of the digest of the weights that a run starts from."""
FIX = "resume with the files of the first start"


class Digests(FileRoot[dict[str, str]]):
    """The content of `digests.json`."""


def read_digests(directory: Path) -> dict[str, str]:
    """The digests of the inputs of a run. Raises StoreError."""
    return read_model(directory / DIGESTS, Digests).root


def write_digests(directory: Path, digests: Mapping[str, str]) -> None:
    """Write the digests of the inputs of a run. Raises StoreError."""
    write_whole(directory / DIGESTS, json.dumps(digests, indent=1, allow_nan=False) + "\n")


def digests_of(recipe: Recipe, data: Data, files: Mapping[str, str], pretrained: Pretrained | None) -> dict[str, str]:
    """The digests of the settings that may not change, the tokenisers, the files, and the model that it starts from."""
    settings = json.dumps(fixed_settings(recipe), sort_keys=True, allow_nan=False)
    return {
        "recipe": hashlib.sha256(settings.encode()).hexdigest(),
        **files,
        **{f"tokeniser {column}": tokeniser.digest for column, tokeniser in data.tokenisers.items()},
        **({PRETRAINED: pretrained.digest} if pretrained is not None else {}),
    }


def file_digests(directory: Path, written: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """The digests of the spec and the corpora of a run, as `SIZE:SHA-256`.

    A file with another size than in `written` is not read, since it may be endless. Raises StoreError.
    """
    paths = {name: directory / file for name, file in FILES.items() if (directory / file).is_file()}
    digests = {}
    try:
        for name, path in paths.items():
            size = f"{path.stat().st_size}:"
            same = name not in written or written[name].startswith(size)
            digests[name] = size + (file_record(path)["sha256"] if same else "")
        return digests
    except OSError as reason:
        raise StoreError(Diagnostic("TFK082", f"{reason.filename} cannot be read: {reason.strerror}")) from None


def checked_file_digests(directory: Path) -> dict[str, str]:
    """The digests of the files of a run, before anything else reads these files. Raises StoreError if they changed since the
    start of the run."""
    written = read_digests(directory)
    digests = file_digests(directory, written)
    missing = [directory / file for name, file in FILES.items() if name in written and name not in digests]
    if missing:
        raise StoreError([Diagnostic("TFK082", f"{path} is missing", "restore it, or start a new run") for path in missing])
    check_digests(directory, {name: digest for name, digest in written.items() if name in FILES}, digests)
    return digests


def check_digests(directory: Path, written: Mapping[str, str], current: Mapping[str, str]) -> None:
    """Raises StoreError if the written digests differ from the current ones."""
    other = [name for name in {**written, **current} if written.get(name) != current.get(name)]
    if other:
        raise StoreError(Diagnostic("TFK113", f"{directory} was started with another {' and '.join(other)}", FIX))
