"""The files of a saved model, and the place of the best model of a run.

spec.yaml           the resolved spec
model.safetensors   the weights
plan.json           the requested backends of each site, and the table of those chosen on the device it was built for
generation.json     how the model generates unless a caller says otherwise; few models have one
adapter_config.json, adapter_model.safetensors
                    instead of the weights: what LoRA adds to another saved model (`adapter.py`)
versions.json       versions of tfkit, its contract, torch and the plugins; size and SHA-256 of the other files
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, field_validator, model_validator

from ..errors import Diagnostic, StoreError
from ..files import DType, FileModel, FileRecord, FileRoot, Line, child, read_model

FORMAT = 1

SPEC, WEIGHTS, PLAN, VERSIONS = "spec.yaml", "model.safetensors", "plan.json", "versions.json"
ADAPTER, ADAPTER_CONFIG = "adapter_model.safetensors", "adapter_config.json"
SHORTLIST = "shortlist.safetensors"

BEST = "best.json"
"""The file that names the best of several models."""

LARGEST_TEXTS = 256 << 20
"""Limit of the total size of a saved model without its weights, in bytes."""

NAME_A_MODEL = "name a directory that `tfkit build -o` or `tfkit train -o` wrote"


class Versions(FileModel):
    """The content of versions.json. `dtypes` are those of tensors whose dtype is not `dtype`, by name; `base` are the weights
    that an adapter was trained on. Versions of Python, torch and plugins are a record, with which nothing is compared."""

    format: Literal[1]
    contract: Annotated[int, Field(ge=1)]
    dtype: DType
    dtypes: dict[str, DType] = {}
    python: Line
    torch: Line
    plugins: dict[Line, Line]
    files: dict[str, FileRecord]
    base: FileRecord | None = None

    @property
    def weights(self) -> str:
        """The file of the weights, or of the adapter."""
        return WEIGHTS if self.base is None else ADAPTER

    @property
    def weights_record(self) -> FileRecord:
        """The size and the digest of that file."""
        return self.files[self.weights]

    @field_validator("files")
    @classmethod
    def _complete(cls, files: dict[str, FileRecord]) -> dict[str, FileRecord]:
        needed = {SPEC, PLAN, *((ADAPTER, ADAPTER_CONFIG) if ADAPTER in files else (WEIGHTS,))}
        if missing := needed - files.keys():
            raise ValueError(f"it does not list {', '.join(sorted(missing))}")
        if (total := sum(record.bytes for name, record in files.items() if name not in (WEIGHTS, ADAPTER))) > LARGEST_TEXTS:
            raise ValueError(f"its files without the weights have {total:,} bytes; at most {LARGEST_TEXTS:,} are allowed")
        return files

    @model_validator(mode="after")
    def _has_base(self) -> Versions:
        if (self.base is None) == (ADAPTER in self.files) or {WEIGHTS, ADAPTER} <= self.files.keys():
            raise ValueError("either weights are listed, or an adapter with its base")
        return self


class Format(FileModel):
    """The format alone, of a file that may have another one."""

    model_config = ConfigDict(extra="ignore")
    format: int


def _is_range(ends: list[int | None]) -> list[int | None]:
    low, high = ends
    if low is None or (high is not None and high < low):
        raise ValueError("a range from the lowest length to the highest one, or null, is expected")
    return ends


def _is_name(name: str) -> str:
    if not all(piece.isidentifier() for piece in name.split(".")):
        raise ValueError("the name of a backend is expected")
    return name


class _PlanRow(FileModel):
    site: str
    lengths: (
        Annotated[
            list[Annotated[int, Field(ge=1, lt=1 << 63)] | None], Field(min_length=2, max_length=2), AfterValidator(_is_range)
        ]
        | None
    )
    chosen: Annotated[Line, AfterValidator(_is_name)] | None


class Plan(FileModel):
    """The content of plan.json. The catalogue checks the backends of `sites`."""

    sites: dict[str, list[Any]]
    device: Annotated[str, Field(pattern=r"\A[a-z0-9_]{1,30}\z")]
    dtype: DType
    table: list[_PlanRow]
    flash_implementation: Line | None = None

    @model_validator(mode="after")
    def _one_set_of_sites(self) -> Plan:
        if other := sorted({row.site for row in self.table} ^ self.sites.keys()):
            raise ValueError(f"`sites` and `table` do not both have {json.dumps(other[0][:80], allow_nan=False)}")
        return self


class Best(FileModel):
    """The content of best.json."""

    model: Annotated[str, Field(pattern=r"^step-\d{1,18}$")]
    metric: Line
    score: float


class _Object(FileRoot[dict[str, Any]]):
    """Any object."""


def model_in(directory: Path) -> Path:
    """The directory of a model: this one, or that of the best model of a training run. Raises StoreError."""
    models = directory / "models"
    best = models / BEST
    if not os.path.lexists(best):
        return directory
    try:
        return child(child(directory, models.name), read_model(best, Best).model)
    except ValueError as reason:
        raise StoreError(Diagnostic("TFK082", f"{best} does not name a model beside it: {reason}", "it was altered")) from None


def listed_names(directory: Path) -> set[str]:
    """The files of the saved model in a directory: those of its listing, which is one of them. None without a listing that can
    be read."""
    try:
        return {VERSIONS, *read_model(directory / VERSIONS, Versions).files}
    except (OSError, StoreError):
        return set()


def read_json(path: Path) -> dict[str, Any]:
    """The object in a file. Raises StoreError."""
    return read_model(path, _Object, fix=NAME_A_MODEL).root
