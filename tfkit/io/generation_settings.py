"""How a saved model generates unless a caller says otherwise: the file `generation.json` beside its weights. No torch.

An import writes it from the `generation_config.json` of Hugging Face transformers. Anyone may write or edit one.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import Field

from ..files import FileModel, read_model

GENERATION = "generation.json"
Beams = Annotated[int, Field(ge=1, le=1_000)]


class SavedPenalty(FileModel):
    """A length penalty: `gnmt` is ((5 + length) / 6)^alpha, `power` is length^alpha."""

    kind: Literal["gnmt", "power"]
    alpha: Annotated[float, Field(ge=0, le=10)]


class GenerationSettings(FileModel):
    """The settings of a search, as `tfkit.Search` names them. None leaves the default of `tfkit.Search`.

    Attributes:
        kind: The kind of search.
        beams: Of `beam`.
        length_penalty: Of `beam`.
        early_stopping: Of `beam`.
        unfinished: Of `beam`.
        temperature: Of `sample`.
        top_k: Of `sample`.
        top_p: Of `sample`.
        new_tokens: The limit of new tokens, whatever the length of the source.
        filters: Score filters as mappings: `kind`, and the options of the filter.
        special_tokens: Whether a text may get the padding, start and unknown tokens.
    """

    kind: Literal["greedy", "beam", "sample"]
    beams: Beams | None = None
    length_penalty: SavedPenalty | None = None
    early_stopping: bool | Literal["never"] | None = None
    unfinished: Literal["last", "ranked"] | None = None
    temperature: Annotated[float, Field(ge=0, le=1e6)] | None = None
    top_k: Annotated[int, Field(ge=1, lt=2**63)] | None = None
    top_p: Annotated[float, Field(gt=0, le=1)] | None = None
    new_tokens: Annotated[int, Field(ge=1, le=1 << 20)] | None = None
    filters: Annotated[list[dict[str, Any]], Field(max_length=32)] = []
    special_tokens: bool | None = None


def read_settings(directory: Path) -> GenerationSettings | None:
    """The settings in the directory of a saved model, None if it has none. Raises StoreError."""
    path = directory / GENERATION
    return read_model(path, GenerationSettings) if os.path.lexists(path) else None


def settings_text(settings: GenerationSettings) -> str:
    """The content of the file."""
    return settings.model_dump_json(indent=1, exclude_none=True) + "\n"
