"""The search of a saved model: the settings of its `generation.json`."""

from __future__ import annotations

import secrets
from pathlib import Path
from typing import Any

from ..catalogue import Catalogue, load_catalogue
from ..errors import Diagnostic, InputError, StoreError
from ..generate import GnmtLengthPenalty, PowerLengthPenalty, Search
from ..io import model_in
from ..io.generation_settings import GENERATION, read_settings

COPIED = ("beams", "early_stopping", "unfinished", "temperature", "top_k", "top_p", "special_tokens")
"""Settings with the name and the values that they have in a search."""


def saved_search(directory: str | Path, catalogue: Catalogue | None = None) -> Search | None:
    """The search that a saved model asks for, None if it has no `generation.json`. A search that samples draws its seed.

    Args:
        directory: directory of a saved model, or of a training run, whose best model is meant.
        catalogue: the installed filters.

    Raises:
        StoreError: the file is wrong, or names a filter that is not installed.
    """
    directory = model_in(Path(directory))
    settings = read_settings(directory)
    if settings is None:
        return None
    written: dict[str, Any] = {name: value for name in COPIED if (value := getattr(settings, name)) is not None}
    if settings.length_penalty is not None:
        penalty = GnmtLengthPenalty if settings.length_penalty.kind == "gnmt" else PowerLengthPenalty
        written["length_penalty"] = penalty(settings.length_penalty.alpha)
    if settings.new_tokens is not None:
        written |= {"length_factor": 0.0, "extra_length": settings.new_tokens}
    if settings.kind == "sample":
        written["seed"] = secrets.randbits(63)
    try:
        filters = [(catalogue or load_catalogue()).score_filter(filter) for filter in settings.filters]
        return Search(kind=settings.kind, filters=filters, **written)
    except InputError as reason:
        message = f"{directory / GENERATION}: {reason.diagnostics[0].message}"
        raise StoreError(Diagnostic("TFK082", message, "correct or remove the file")) from None
