"""The attention whose weights align words, of a model that was trained to align: the file `alignment.json` beside its weights.
No torch."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

from pydantic import Field

from ..files import FileModel, read_model

ALIGNMENT = "alignment.json"


class AlignmentSite(FileModel):
    """A cross-attention site, and one of its heads; the mean over all heads for None."""

    site: Annotated[str, Field(min_length=1, max_length=1000)]
    head: Annotated[int, Field(ge=0, lt=100_000)] | None = None


def read_alignment_site(directory: Path) -> AlignmentSite | None:
    """The site of a saved model, None if it has none. Raises StoreError."""
    path = directory / ALIGNMENT
    return read_model(path, AlignmentSite) if os.path.lexists(path) else None


def alignment_site_text(site: AlignmentSite) -> str:
    """The content of the file."""
    return site.model_dump_json(exclude_none=True) + "\n"
