"""From text files to corpora of ids: read, learn tokenisers, encode, leave out what cannot be used and count it."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np

from ..errors import Fault, InputError, StoreError
from ..files import write_whole
from ..recipe import END, Recipe
from .corpus import Corpus, CorpusWriter
from .lines import lines, rows
from .tokeniser import TextTokeniser, train_tokeniser

TRAIN, VALIDATION, FACTS = "train.arrow", "validation.arrow", "facts.json"
GROUP = 2_000
"""Rows encoded at once."""


@dataclass
class Counted:
    """Rows of one corpus: read, kept, and left out by reason; `first` is the line of the first one left out for it."""

    read: int = 0
    kept: int = 0
    left_out: dict[str, int] = field(default_factory=dict)
    first: dict[str, int] = field(default_factory=dict)
    tokens: dict[str, int] = field(default_factory=dict)
    digest: str = ""

    def leave_out(self, reason: str, line: int) -> None:
        self.left_out[reason] = self.left_out.get(reason, 0) + 1
        self.first.setdefault(reason, line)


@dataclass(frozen=True)
class Data:
    """What training reads. `tokenisers` by column: `source` and `target` are one object where the vocabulary is joint."""

    tokenisers: Mapping[str, TextTokeniser]
    train: Corpus
    validation: Corpus | None
    facts: Mapping[str, Counted]


def files_of(recipe: Recipe) -> tuple[dict[str, str], dict[str, str]]:
    """The training and the validation files of a recipe by column. Raises InputError where one is missing."""
    options, kind = recipe.data.options, recipe.data.kind
    names = {"source": "source", "target": "target"} if kind == "parallel" else {"target": "text"}
    train = {column: getattr(options, name) for column, name in names.items()}
    validation = {column: getattr(options, f"validation_{name}") for column, name in names.items()}
    missing = [names[column] for column, path in train.items() if path is None]
    if missing:
        flags = " ".join(f"--{name} FILE" for name in missing)
        message = f"the recipe names no file for {' and '.join(f'`data.{name}`' for name in missing)}"
        raise InputError(recipe.fault("TFK108", "data", message, f"write it there, or give {flags}"))
    given = [column for column, path in validation.items() if path is not None]
    if given and len(given) < len(validation):
        message = f"validation data need all of {', '.join(f'`data.validation_{name}`' for name in names.values())}"
        raise InputError(recipe.fault("TFK108", "data", message))
    return train, validation if given else {}


def count_rows(recipe: Recipe) -> int:
    """How many rows the training files have. Raises InputError for files that cannot be read or do not belong together."""
    train, _ = files_of(recipe)
    return sum(1 for _ in rows(*train.values()))


def prepare(recipe: Recipe, directory: Path, vocab_size: int) -> Data:
    """Learn the tokenisers of a recipe from its training text and write the corpora into a directory.

    Raises InputError for text that cannot be used, StoreError where the directory cannot be written.
    """
    train, validation = files_of(recipe)
    total = count_rows(recipe)
    held_out = _held_out(recipe, total, bool(validation))
    directory.mkdir(parents=True, exist_ok=True)
    tokenisers = _tokenisers(recipe, train, vocab_size, held_out)
    facts = {"train": _encode(recipe, train, tokenisers, directory / TRAIN, lambda row: row not in held_out, True)}
    if validation:
        facts["validation"] = _encode(recipe, validation, tokenisers, directory / VALIDATION, lambda row: True, False)
    elif held_out:
        facts["validation"] = _encode(recipe, train, tokenisers, directory / VALIDATION, held_out.__contains__, False)
    if not facts["train"].kept:
        raise InputError(recipe.fault("TFK103", "data", f"no row of {', '.join(train.values())} is left", told(facts["train"])))
    write_whole(directory / FACTS, json.dumps({name: asdict(each) for name, each in facts.items()}, indent=1) + "\n")
    return read_data(recipe, directory, tokenisers)


def read_data(recipe: Recipe, directory: Path, tokenisers: Mapping[str, TextTokeniser]) -> Data:
    """The corpora that `prepare` wrote. Raises StoreError, and InputError where no batch has room for the longest row."""
    try:
        facts = {name: Counted(**each) for name, each in json.loads((directory / FACTS).read_text(encoding="utf-8")).items()}
    except (OSError, ValueError, TypeError) as reason:
        raise StoreError(Fault("TFK082", f"{directory / FACTS} cannot be read: {reason}")) from None
    train = Corpus(directory / TRAIN)
    validation = Corpus(directory / VALIDATION) if "validation" in facts else None
    longest = max(int(lengths.max()) for lengths in train.lengths.values())
    if longest > recipe.batching.tokens:
        message = f"a batch has room for {recipe.batching.tokens} tokens, the longest row has {longest}"
        fix = f"write at least {longest}, or a smaller `batching.max_length`"
        raise InputError(recipe.fault("TFK109", "batching.tokens", message, fix))
    return Data(tokenisers, train, validation, facts)


def told(counted: Counted) -> str:
    """What became of the rows of a corpus, in one line."""
    out = [f"{count:,} {reason} (first: line {counted.first[reason]:,})" for reason, count in counted.left_out.items()]
    return f"{counted.kept:,} of {counted.read:,} rows" + (f"; left out: {', '.join(out)}" if out else "")


def _held_out(recipe: Recipe, total: int, validated: bool) -> frozenset[int]:
    """The rows of the training text that are kept for validation, where no file is named: a twentieth, at most 1,000."""
    wanted = recipe.data.options.held_out
    if validated:
        if wanted is not None:
            message = "rows are held out only where no validation files are named"
            raise InputError(recipe.fault("TFK108", "data.held_out", message, "remove one of the two"))
        return frozenset()
    count = min(1000, total // 20) if wanted is None else wanted
    if count >= total:
        raise InputError(
            recipe.fault("TFK108", "data.held_out", f"{count} rows of {total} are to be held out", "hold out fewer")
        )
    generator = np.random.Generator(np.random.PCG64([recipe.seed, 0]))
    return frozenset(generator.choice(total, count, replace=False).tolist())


def _tokenisers(
    recipe: Recipe, files: Mapping[str, str], vocab_size: int, held_out: frozenset[int]
) -> Mapping[str, TextTokeniser]:
    """What is held out is not learnt from."""
    part = recipe.tokeniser
    sentences = recipe.data.kind == "parallel"

    def text(*paths: str) -> Iterator[str]:
        for path in paths:
            ends = "" if sentences else "\n"
            yield from (line + ends for number, line in enumerate(lines(path)) if number not in held_out)

    if part.options.joint or len(files) == 1:
        shared = train_tokeniser(part, text(*files.values()), vocab_size, sentences)
        return dict.fromkeys(files, shared)
    return {column: train_tokeniser(part, text(path), vocab_size, sentences) for column, path in files.items()}


def _encode(
    recipe: Recipe,
    files: Mapping[str, str],
    tokenisers: Mapping[str, TextTokeniser],
    path: Path,
    wanted: Callable[[int], bool],
    filtered: bool,
) -> Counted:
    """Write the wanted rows of some files, without those that break a limit where they are `filtered`."""
    counted = Counted()
    writer = CorpusWriter(path, tuple(files), () if filtered else tuple(f"{column}_text" for column in files))
    numbered = ((number, row) for number, row in enumerate(rows(*files.values())) if wanted(number))
    pieces = (
        _sentences(numbered, tokenisers) if recipe.data.kind == "parallel" else _pieces(numbered, tokenisers["target"], recipe)
    )
    for number, texts, encoded in pieces:
        counted.read += 1
        reason = _reason(recipe, texts, encoded) if filtered else None
        if reason is not None:
            counted.leave_out(reason, number + 1)
            continue
        row: dict[str, Any] = dict(zip(files, encoded, strict=True))
        writer.add(row | {f"{column}_text": text for column, text in zip(files, texts, strict=True)})
    counted.kept, counted.tokens, counted.digest = writer.rows, dict(writer.tokens), writer.close()
    return counted


Piece = tuple[int, tuple[str, ...], list[list[int]]]


def _sentences(numbered: Iterable[tuple[int, tuple[str, ...]]], tokenisers: Mapping[str, TextTokeniser]) -> Iterator[Piece]:
    """Every row with the ids of its sides, end tokens included."""
    numbered = iter(numbered)
    while group := list(islice(numbered, GROUP)):
        sides = [each.encode([row[side] for _, row in group]) for side, each in enumerate(tokenisers.values())]
        for (number, texts), *encoded in zip(group, *sides, strict=True):
            yield number, texts, [[*ids, END] for ids in encoded]


def _pieces(numbered: Iterable[tuple[int, tuple[str, ...]]], tokeniser: TextTokeniser, recipe: Recipe) -> Iterator[Piece]:
    """Running text in pieces of `max_length` tokens and the one that follows them."""
    numbered = iter(numbered)
    width, left, at = recipe.batching.max_length, list[int](), 0
    while group := list(islice(numbered, GROUP)):
        at = group[-1][0]
        left += tokeniser.encode(["".join(f"{row[0]}\n" for _, row in group)])[0]
        while len(left) > width:
            yield at, ("",), [left[: width + 1]]
            left = left[width:]
    if len(left) > 1:
        yield at, ("",), [left]


def _reason(recipe: Recipe, texts: tuple[str, ...], encoded: list[list[int]]) -> str | None:
    """Why a row is left out, None where it is kept."""
    if recipe.data.kind != "parallel":
        return None
    limits = recipe.batching
    counts = [len(ids) for ids in encoded]
    if min(counts) == 1:
        return "with an empty side" if max(counts) > 1 else "empty"
    if max(counts) > limits.max_length:
        return f"longer than {limits.max_length} tokens"
    if limits.max_ratio is not None and max(counts) > limits.max_ratio * min(counts):
        return f"of which one side is more than {limits.max_ratio:g} times as long"
    return None
