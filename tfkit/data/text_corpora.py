"""The text files of a recipe: one corpus, or several, and which rows of each are held out."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..errors import InputError
from ..files import open_regular
from ..recipe import Recipe, alignments_of, corpora_in
from .corpus_row import Numbered
from .distilled import distilled_rows, nearest
from .kinds import KINDS, text_rows


@dataclass(frozen=True)
class TextCorpus:
    """A corpus of a recipe.

    Attributes:
        name: Its name; empty for the only one.
        key: The key of the recipe that names its files: `data`, `data.corpora.0`.
        train: The training files by column.
        validation: The validation files by column, if they are named.
        held_out: The number of rows to hold out, if it is written.
        source_prefix: What is put before every source.
        links: The file of links of the words of the training rows.
        gold: The file of links of the words of the validation rows; of rows that are held out, that of all rows.
        distilled: The file of a teacher's translations, which training rows have as targets.
    """

    name: str
    key: str
    train: Mapping[str, str]
    validation: Mapping[str, str]
    held_out: int | None = None
    source_prefix: str | None = None
    links: str | None = None
    gold: str | None = None
    distilled: str | None = None

    def rows(self, recipe: Recipe, files: Mapping[str, str] | None = None) -> Numbered:
        """The texts of the rows of the training files, or of others of this corpus, with the line number from 0."""
        for number, texts in text_rows(recipe, files or self.train):
            if self.source_prefix is not None and texts[0].strip():
                texts = (f"{self.source_prefix} {texts[0]}", *texts[1:])
            yield number, texts

    def selected(self, recipe: Recipe, held_out: frozenset[int], inside: bool) -> Numbered:
        """The training rows that are held out, if `inside`, or those that are not, with their distilled targets."""
        rows = ((number, texts) for number, texts in self.rows(recipe) if (number in held_out) is inside)
        return rows if inside or self.distilled is None else distilled_rows(rows, self.distilled, self._nearest)

    @cached_property
    def _nearest(self) -> NDArray[np.uint8]:
        assert self.distilled is not None, "asked for where there is such a file"
        return nearest(self.distilled, self.train["target"])

    def held_out_rows(self, recipe: Recipe) -> frozenset[int]:
        """The rows that are held out for validation. Raises InputError for files of different lengths, or too few rows."""
        total = sum(1 for _ in self.rows(recipe))
        return held_out_rows(recipe, total, bool(self.validation), self.held_out, self.key)


def corpora_of(recipe: Recipe) -> list[TextCorpus]:
    """The corpora of a recipe. Raises InputError if a file is missing or cannot be read several times."""
    return [_corpus(recipe, getattr(options, "name", ""), key, options) for key, options in corpora_in(recipe).items()]


def _corpus(recipe: Recipe, name: str, key: str, options: Any) -> TextCorpus:
    names = KINDS[recipe.data.kind].files
    train = {column: getattr(options, option) for column, option in names.items()}
    validation = {column: getattr(options, f"validation_{option}") for column, option in names.items()}
    missing = [names[column] for column, path in train.items() if path is None]
    if missing:
        flags = " ".join(f"--{name} FILE" for name in missing)
        message = f"the recipe names no file for {' and '.join(f'`{key}.{name}`' for name in missing)}"
        raise InputError(recipe.diagnostic("TFK108", key, message, f"write it there, or give {flags}"))
    named = [(f"{key}.{names[column]}", path) for column, path in train.items()]
    named += [(f"{key}.validation_{names[column]}", path) for column, path in validation.items()]
    named += [(f"{key}.{name}", getattr(options, name, None)) for name in ("alignment", "validation_alignment", "distilled")]
    diagnostics = [
        recipe.diagnostic("TFK100", place, f"{path} cannot be read: {reason}", "name a file of text, plain or `.gz`")
        for place, path in named
        if path is not None and (reason := _refused(path))
    ]
    if diagnostics:
        raise InputError(diagnostics)
    named_validation = [path for path in validation.values() if path is not None]
    if named_validation and len(named_validation) < len(validation):
        message = f"validation data need all of {', '.join(f'`{key}.validation_{name}`' for name in names.values())}"
        raise InputError(recipe.diagnostic("TFK108", key, message))
    prefix = getattr(options, "source_prefix", None)
    validation = validation if named_validation else {}
    distilled = getattr(options, "distilled", None)
    if distilled is not None and (links := alignments_of(options)[0]) is not None:
        message = f"the links of {links} are those of words of `{key}.target`, and the targets are distilled"
        raise InputError(recipe.diagnostic("TFK108", f"{key}.distilled", message, "remove one of the two"))
    return TextCorpus(name, key, train, validation, options.held_out, prefix, *alignments_of(options), distilled)


def _refused(path: str) -> str | None:
    """The reason why a file cannot be read several times; None for a missing file, which its reader reports."""
    if path == "-":
        return "text is read several times, but standard input can be read only once"
    try:
        open_regular(path).close()
    except FileNotFoundError:
        return None
    except OSError as reason:
        return reason.strerror or str(reason)
    return None


def count_rows(recipe: Recipe) -> int:
    """The number of rows of the training files. Raises InputError for files that cannot be read or have different lengths."""
    return sum(1 for corpus in corpora_of(recipe) for _ in corpus.rows(recipe))


def held_out_rows(recipe: Recipe, total: int, validated: bool, requested: int | None, key: str) -> frozenset[int]:
    """The training rows that are held out for validation if no validation file is named: random rows, or the last rows of
    running text, whose rows continue each other. The default number is a twentieth, at most 1,000."""
    if validated:
        if requested is not None:
            message = "rows are held out only if no validation files are named"
            raise InputError(recipe.diagnostic("TFK108", f"{key}.held_out", message, "remove one of the two"))
        return frozenset()
    count = min(1000, total // 20) if requested is None else requested
    if count >= total:
        raise InputError(
            recipe.diagnostic("TFK108", f"{key}.held_out", f"{count} of {total} rows would be held out", "hold out fewer")
        )
    if KINDS[recipe.data.kind].continued:
        return frozenset(range(total - count, total))
    generator = np.random.Generator(np.random.PCG64([recipe.seed, 0]))
    first = int(getattr(recipe.data.options, "header", False))
    return frozenset((generator.choice(total, count, replace=False) + first).tolist())
