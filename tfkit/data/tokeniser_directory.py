"""Tokenisers and labels in the directory of a model."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

from pydantic import ConfigDict, field_validator

from ..errors import Diagnostic, InputError
from ..files import LABELS, PAIR_LABELS, FileRoot, read_model
from .labels import check_labels
from .tokeniser import TextTokeniser

JOINT = "tokeniser.json"
SEPARATE = {"source": "source.json", "target": "target.json"}
TOKENISER_FILES: tuple[str, ...] = (JOINT, *SEPARATE.values())
"""The file names of tokenisers."""


class _Labels(FileRoot[list[str]]):
    model_config = ConfigDict(strict=True)

    @field_validator("root")
    @classmethod
    def _labels(cls, labels: list[str]) -> list[str]:
        check_labels(labels)
        return labels


class _Tags(_Labels):
    @field_validator("root")
    @classmethod
    def _words(cls, tags: list[str]) -> list[str]:
        check_labels(tags, words=True)
        return tags


def tokeniser_texts(tokenisers: Mapping[str, TextTokeniser]) -> dict[str, str]:
    """The JSON of tokenisers by file name: one file if all columns share one tokeniser."""
    if len({id(tokeniser) for tokeniser in tokenisers.values()}) == 1:
        return {JOINT: next(iter(tokenisers.values())).to_json()}
    return {SEPARATE[column]: tokeniser.to_json() for column, tokeniser in tokenisers.items()}


def label_texts(labels: Sequence[str], pairs: bool) -> dict[str, str]:
    """The labels of a classifier by file name; nothing without labels."""
    return {PAIR_LABELS if pairs else LABELS: json.dumps(list(labels), allow_nan=False) + "\n"} if labels else {}


def has_labels(directory: Path) -> bool:
    """Whether the model in a directory is a classifier."""
    return any(os.path.lexists(directory / name) for name in (LABELS, PAIR_LABELS))


def reads_pairs(directory: Path) -> bool:
    """Whether the model in a directory classifies pairs of texts."""
    return os.path.lexists(directory / PAIR_LABELS)


def read_labels(directory: Path, words: bool = False) -> tuple[str, ...]:
    """The labels of the classifier in a directory, or the tags of `words`. Raises InputError if there are none, StoreError if
    the file is damaged."""
    path = directory / (PAIR_LABELS if reads_pairs(directory) else LABELS)
    if not os.path.lexists(path):
        raise InputError(
            Diagnostic(
                "TFK116", f"{path} cannot be read: No such file or directory", "name a classifier that `tfkit train` wrote"
            )
        )
    return tuple(read_model(path, _Tags if words else _Labels).root)


def read_tokenisers(directory: Path, columns: tuple[str, ...]) -> dict[str, TextTokeniser]:
    """The tokenisers in a directory, by column. Raises InputError if one is missing."""
    if os.path.lexists(directory / JOINT):
        return dict.fromkeys(columns, TextTokeniser.load(directory / JOINT, links=False))
    missing = [SEPARATE[column] for column in columns if not os.path.lexists(directory / SEPARATE[column])]
    if missing:
        message = f"{directory} has no tokeniser: neither {JOINT} nor {', '.join(missing)}"
        raise InputError(Diagnostic("TFK104", message, "name a model that `tfkit train` wrote"))
    return {column: TextTokeniser.load(directory / SEPARATE[column], links=False) for column in columns}
