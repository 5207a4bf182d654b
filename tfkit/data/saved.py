"""Tokenisers in a directory, beside the model that speaks in their ids."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

from ..errors import Fault, InputError
from .tokeniser import TextTokeniser

JOINT = "tokeniser.json"
LABELS = "labels.json"
"""The classes of a classifier, in the order of its output."""
SEPARATE = {"source": "source.json", "target": "target.json"}
TOKENISER_FILES = (JOINT, *SEPARATE.values())
"""The names that files of tokenisers may have."""


def tokeniser_texts(tokenisers: Mapping[str, TextTokeniser]) -> dict[str, str]:
    """Tokenisers by column as texts by file name: one file where all columns share it."""
    if len({id(each) for each in tokenisers.values()}) == 1:
        return {JOINT: next(iter(tokenisers.values())).to_json()}
    return {SEPARATE[column]: each.to_json() for column, each in tokenisers.items()}


def read_labels(directory: Path) -> tuple[str, ...]:
    """The labels of the classifier that stands in a directory. Raises InputError where there are none."""
    try:
        labels = json.loads((directory / LABELS).read_text(encoding="utf-8"))
    except (OSError, ValueError) as reason:
        words = getattr(reason, "strerror", None) or reason
        message = f"{directory / LABELS} cannot be read: {words}"
        raise InputError(Fault("TFK116", message, "name a classifier that `tfkit train` has made")) from None
    if not isinstance(labels, list) or not all(isinstance(label, str) for label in labels):
        raise InputError(Fault("TFK116", f"{directory / LABELS} holds no list of names"))
    return tuple(labels)


def read_tokenisers(directory: Path, columns: tuple[str, ...]) -> dict[str, TextTokeniser]:
    """The tokenisers that stand in a directory. Raises InputError where there are none."""
    if (directory / JOINT).is_file():
        return dict.fromkeys(columns, TextTokeniser.load(directory / JOINT))
    missing = [SEPARATE[column] for column in columns if not (directory / SEPARATE[column]).is_file()]
    if missing:
        message = f"{directory} has no tokeniser: neither {JOINT} nor {', '.join(missing)}"
        raise InputError(Fault("TFK104", message, "name a model that `tfkit train` has made"))
    return {column: TextTokeniser.load(directory / SEPARATE[column]) for column in columns}
