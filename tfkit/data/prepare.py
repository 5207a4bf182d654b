"""From text files to corpora of ids: read, learn tokenisers, encode, leave out what cannot be used and count it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..errors import Diagnostic, InputError, Location, StoreError
from ..files import FileModel, open_regular, read_model, write_whole
from ..recipe import Recipe
from .corpus import Corpus, CorpusWriter
from .kinds import KINDS, Row, text_rows
from .tokeniser import TextTokeniser, train_tokeniser

FEW_LABELS = 20
"""Up to so many labels a small table may have nearly as many labels as rows."""
TRAIN, VALIDATION, FACTS = "train.arrow", "validation.arrow", "facts.json"


_Whole = Annotated[int, Field(ge=0, lt=1 << 53)]


class Counted(BaseModel):
    """Rows of one corpus: read, kept, and left out by reason; `first` is the line of the first one left out for it."""

    model_config = ConfigDict(strict=True, extra="forbid")

    read: _Whole = 0
    kept: _Whole = 0
    left_out: dict[str, _Whole] = {}
    first: dict[str, _Whole] = {}
    tokens: dict[str, _Whole] = {}
    digest: str = ""

    @model_validator(mode="after")
    def _agrees(self) -> Counted:
        if self.left_out.keys() != self.first.keys():
            raise ValueError("`left_out` and `first` give the same reasons")
        return self

    def leave_out(self, reason: str, line: int) -> None:
        self.left_out[reason] = self.left_out.get(reason, 0) + 1
        self.first.setdefault(reason, line)


class Facts(FileModel):
    """What `prepare` has seen: the labels of a classification, and the rows of the corpora."""

    labels: list[str]
    corpora: dict[str, Counted]

    @model_validator(mode="after")
    def _trains(self) -> Facts:
        if not {"train"} <= self.corpora.keys() <= {"train", "validation"}:
            raise ValueError("`corpora` has `train`, and perhaps `validation`")
        return self


@dataclass(frozen=True)
class Data:
    """What training reads. `tokenisers` by column: `source` and `target` are one object where the vocabulary is joint. `labels`
    are the classes, in the order of the model's output, where rows have labels."""

    tokenisers: Mapping[str, TextTokeniser]
    train: Corpus
    validation: Corpus | None
    facts: Mapping[str, Counted]
    labels: tuple[str, ...] = ()


def files_of(recipe: Recipe) -> tuple[dict[str, str], dict[str, str]]:
    """The training and the validation files of a recipe by column. Raises InputError where one is missing."""
    options, names = recipe.data.options, KINDS[recipe.data.kind].files
    train = {column: getattr(options, name) for column, name in names.items()}
    validation = {column: getattr(options, f"validation_{name}") for column, name in names.items()}
    missing = [names[column] for column, path in train.items() if path is None]
    if missing:
        flags = " ".join(f"--{name} FILE" for name in missing)
        message = f"the recipe names no file for {' and '.join(f'`data.{name}`' for name in missing)}"
        raise InputError(recipe.diagnostic("TFK108", "data", message, f"write it there, or give {flags}"))
    named = [(f"data.{names[column]}", path) for column, path in train.items()]
    named += [(f"data.validation_{names[column]}", path) for column, path in validation.items()]
    diagnostics = [
        recipe.diagnostic("TFK100", key, f"{path} cannot be read: {reason}", "name a file of text, plain or `.gz`")
        for key, path in named
        if path is not None and (reason := _refused(path))
    ]
    if diagnostics:
        raise InputError(diagnostics)
    given = [column for column, path in validation.items() if path is not None]
    if given and len(given) < len(validation):
        message = f"validation data need all of {', '.join(f'`data.validation_{name}`' for name in names.values())}"
        raise InputError(recipe.diagnostic("TFK108", "data", message))
    return train, validation if given else {}


def _refused(path: str) -> str | None:
    """Why a file cannot be read several times. One that is missing is left to its reader."""
    if path == "-":
        return "text is read several times, and standard input can be read once"
    try:
        open_regular(path).close()
    except FileNotFoundError:
        return None
    except OSError as reason:
        return reason.strerror or str(reason)
    return None


def count_rows(recipe: Recipe) -> int:
    """How many rows the training files have. Raises InputError for files that cannot be read or do not belong together."""
    train, _ = files_of(recipe)
    return sum(1 for _ in text_rows(recipe, train))


def prepare(
    recipe: Recipe,
    directory: Path,
    vocab_size: int,
    tokenisers: Mapping[str, TextTokeniser] | None = None,
    positions: Mapping[str, int] | None = None,
) -> Data:
    """Learn the tokenisers of a recipe from its training text, unless they are given by column, and write the corpora into a
    directory. `positions` by column are those that the model has, where there is an end to them.

    Raises InputError for text that cannot be used, StoreError where the directory cannot be written.
    """
    train, validation = files_of(recipe)
    held_out = _held_out(recipe, count_rows(recipe), bool(validation))
    labels = _labels(recipe, train)
    try:
        directory.mkdir(parents=True, exist_ok=True)
    except OSError as reason:
        raise StoreError(Diagnostic("TFK081", f"{directory} cannot be made: {reason.strerror}")) from None
    tokenisers = tokenisers or _tokenisers(recipe, train, vocab_size, held_out)
    encode = _Encoder(recipe, tokenisers, labels, positions or {})
    facts = {"train": encode(train, directory / TRAIN, lambda row: row not in held_out, True)}
    if validation:
        facts["validation"] = encode(validation, directory / VALIDATION, lambda row: True, False)
    elif held_out:
        facts["validation"] = encode(train, directory / VALIDATION, held_out.__contains__, False, held_out=True)
    if not facts["train"].kept:
        raise InputError(
            recipe.diagnostic(
                "TFK103", "data", f"no row of {', '.join(train.values())} is left", describe_counts(facts["train"])
            )
        )
    if "validation" in facts and not facts["validation"].kept:
        source = ", ".join(validation.values()) or "the rows that are held out"
        raise InputError(
            recipe.diagnostic("TFK103", "data", f"no row of {source} is left", describe_counts(facts["validation"]))
        )
    data = {"labels": labels, "corpora": {name: each.model_dump() for name, each in facts.items()}}
    write_whole(directory / FACTS, json.dumps(data, indent=1) + "\n")
    return read_data(recipe, directory, tokenisers)


def read_data(recipe: Recipe, directory: Path, tokenisers: Mapping[str, TextTokeniser]) -> Data:
    """The corpora that `prepare` wrote. Raises StoreError, and InputError where no batch has room for the longest row."""
    found = read_facts(directory)
    facts = found.corpora
    train = Corpus(directory / TRAIN)
    validation = Corpus(directory / VALIDATION) if "validation" in facts else None
    longest = max(int(lengths.max()) for lengths in train.lengths.values())
    if longest > recipe.batching.tokens:
        message = f"a batch has room for {recipe.batching.tokens} tokens, the longest row has {longest}"
        fix = f"write at least {longest}, or a smaller `batching.max_length`"
        raise InputError(recipe.diagnostic("TFK109", "batching.tokens", message, fix))
    return Data(tokenisers, train, validation, facts, tuple(found.labels))


def read_facts(directory: Path) -> Facts:
    """What `prepare` wrote beside the corpora. Raises StoreError."""
    return read_model(directory / FACTS, Facts, fix="begin a new run")


def describe_counts(counted: Counted) -> str:
    """What became of the rows of a corpus, in one line."""
    out = [f"{count:,} {reason} (first: line {counted.first[reason]:,})" for reason, count in counted.left_out.items()]
    return f"{counted.kept:,} of {counted.read:,} rows" + (f"; left out: {', '.join(out)}" if out else "")


def _held_out(recipe: Recipe, total: int, validated: bool) -> frozenset[int]:
    """The rows of the training text that are kept for validation, where no file is named: a twentieth, at most 1,000. Of
    running text the last ones, for a line apart from its neighbours is no text."""
    wanted = recipe.data.options.held_out
    if validated:
        if wanted is not None:
            message = "rows are held out only where no validation files are named"
            raise InputError(recipe.diagnostic("TFK108", "data.held_out", message, "remove one of the two"))
        return frozenset()
    count = min(1000, total // 20) if wanted is None else wanted
    if count >= total:
        raise InputError(
            recipe.diagnostic("TFK108", "data.held_out", f"{count} rows of {total} are to be held out", "hold out fewer")
        )
    if not KINDS[recipe.data.kind].sentences:
        return frozenset(range(total - count, total))
    generator = np.random.Generator(np.random.PCG64([recipe.seed, 0]))
    first = int(getattr(recipe.data.options, "header", False))
    return frozenset((generator.choice(total, count, replace=False) + first).tolist())


def _labels(recipe: Recipe, files: Mapping[str, str]) -> list[str]:
    """The labels of a table, sorted. Raises InputError where they are no classes: one for all rows, or most rows with their
    own."""
    if not KINDS[recipe.data.kind].labelled:
        return []
    counts = Counter(texts[1] for _, texts in text_rows(recipe, files))
    found, rows = sorted(counts), counts.total()
    if len(found) < 2 or (len(found) > FEW_LABELS and 2 * len(found) > rows):
        several = f"there are {len(found):,} different labels in {rows:,} rows, more than one for two rows"
        message = several if len(found) > 1 else f"every row has the label `{found[0]}`" if found else "there is no row"
        fix = f"`label_column`, now {recipe.data.options.label_column}, says which column holds the labels"
        raise InputError(recipe.diagnostic("TFK115", "data", message, fix))
    return found


def _tokenisers(
    recipe: Recipe, files: Mapping[str, str], vocab_size: int, held_out: frozenset[int]
) -> Mapping[str, TextTokeniser]:
    """What is held out is not learnt from."""
    part, kind = recipe.tokeniser, KINDS[recipe.data.kind]

    def text(*sides: int) -> Iterator[str]:
        for number, texts in text_rows(recipe, files):
            if number not in held_out:
                yield from (texts[side] if kind.sentences else f"{texts[side]}\n" for side in sides)

    if part.options.joint or len(files) == 1:
        shared = train_tokeniser(part, text(*range(len(files))), vocab_size, kind.sentences, kind.masks)
        return dict.fromkeys(files, shared)
    return {column: train_tokeniser(part, text(side), vocab_size) for side, column in enumerate(files)}


@dataclass(frozen=True)
class Beyond:
    """A row with more tokens than the model has positions, and the line where it ends."""

    path: str
    line: int
    tokens: int
    most: int

    def diagnostic(self, filtered: bool) -> Diagnostic:
        """`filtered` says that `batching.max_length` leaves long rows out."""
        message = f"a row of {self.tokens:,} tokens ends here, and the model has {self.most:,} positions"
        short = f"write `batching.max_length: {self.most}`" if filtered else "shorten the line, or remove it"
        fix = f"{short}, or write a larger `max_len` in the spec"
        return Diagnostic("TFK061", message, fix, "batching.max_length" if filtered else "", Location(self.path, self.line))


class _Encoder:
    """Writes rows of ids; gives what became of them."""

    def __init__(
        self, recipe: Recipe, tokenisers: Mapping[str, TextTokeniser], labels: list[str], positions: Mapping[str, int]
    ) -> None:
        self.recipe, self.tokenisers, self.positions = recipe, tokenisers, positions
        self.kind = KINDS[recipe.data.kind]
        self.numbers = {label: number for number, label in enumerate(labels)}

    def __call__(
        self, files: Mapping[str, str], path: Path, wanted: Callable[[int], bool], filtered: bool, held_out: bool = False
    ) -> Counted:
        """The wanted rows of some files, without those that break a limit where they are `filtered`, and without those that the
        model has no positions for where they were drawn to be `held_out`."""
        counted = Counted()
        texts = () if filtered else tuple(f"{column}_text" for column in files)
        writer = CorpusWriter(path, tuple(files), texts, ("label",) if self.kind.labelled else ())
        numbered = ((number, row) for number, row in text_rows(self.recipe, files) if wanted(number))
        for row in self.kind.encode(numbered, self.tokenisers, self.recipe):
            counted.read += 1
            reason = self._reason(row) if filtered else None
            if reason is None and (beyond := self._beyond(row, files)) is not None:
                if not held_out:
                    raise InputError(beyond.diagnostic(filtered))
                reason = f"longer than the {beyond.most:,} positions of the model"
            if reason is not None:
                counted.leave_out(reason, row.line)
                continue
            values: dict[str, Any] = dict(zip(files, row.ids, strict=True))
            values |= {f"{column}_text": text for column, text in zip(files, row.texts, strict=True)}
            writer.add(values | self._label(row, files))
        counted.kept, counted.tokens, counted.digest = writer.rows, dict(writer.tokens), writer.close()
        return counted

    def _label(self, row: Row, files: Mapping[str, str]) -> dict[str, int]:
        if row.label is None:
            return {}
        if row.label not in self.numbers:
            location = Location(next(iter(files.values())), row.line)
            known = ", ".join(f"`{label}`" for label in list(self.numbers)[:8])
            raise InputError(
                Diagnostic(
                    "TFK115", f"the label `{row.label}` is not in the training table", f"known: {known}", location=location
                )
            )
        return {"label": self.numbers[row.label]}

    def _beyond(self, row: Row, files: Mapping[str, str]) -> Beyond | None:
        """A side of a row that is longer than what the model has positions for, None where there is none."""
        for column, ids in zip(files, row.ids, strict=True):
            tokens = len(ids) - (not self.kind.sentences)  # the last token of running text is predicted and not read
            if tokens > self.positions.get(column, tokens):
                return Beyond(files[column], row.line, tokens, self.positions[column])
        return None

    def _reason(self, row: Row) -> str | None:
        """Why a row is left out, None where it is kept."""
        limits = self.recipe.batching
        if not self.kind.sentences:
            return None
        if not min(row.bare):
            return "with an empty side" if max(row.bare) else "empty"
        longest = max(map(len, row.ids))
        if longest > limits.max_length:
            return f"longer than {limits.max_length} tokens"
        if limits.max_ratio is not None and longest > limits.max_ratio * min(map(len, row.ids)):
            return f"of which one side is more than {limits.max_ratio:g} times as long"
        return None
