"""How each kind of data is read: its files, its texts, and the ids of a row.

parallel         source s1 .. sn </s>, target t1 .. tm </s>
language         target t1 .. tn+1, a piece of the running text and the token that follows it
masked           target <s> t1 .. tn </s>
classification   target <s> t1 .. tn </s>, and a label
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from typing import Any

from ..errors import Fault, InputError, Mark
from ..recipe import END, START, Recipe
from .lines import rows
from .tokeniser import TextTokeniser

GROUP = 2_000
"""Rows encoded at once."""
Numbered = Iterator[tuple[int, tuple[str, ...]]]


@dataclass(frozen=True)
class Row:
    """A row of a corpus: the `line` it was read from, counted from 1, its texts and ids by column, its label where it has one.
    `bare` is the number of tokens that each side has without special ones."""

    line: int
    texts: tuple[str, ...]
    ids: tuple[list[int], ...]
    bare: tuple[int, ...]
    label: str | None = None


@dataclass(frozen=True)
class DataKind:
    """`files` are the options that name the files, by column of the corpus. `sentences` says that every line is a text of its
    own, `masks` that tokens will be hidden, `labelled` that rows have labels. `encode` makes rows of numbered texts."""

    files: Mapping[str, str]
    encode: Callable[[Numbered, Mapping[str, TextTokeniser], Recipe], Iterator[Row]]
    sentences: bool = True
    masks: bool = False
    labelled: bool = False

    @property
    def sources(self) -> int:
        """The number of inputs that are read beside the one that is predicted."""
        return len(self.files) - 1


def text_rows(recipe: Recipe, files: Mapping[str, str]) -> Numbered:
    """The texts of every line by column, numbered from 0; of a table text and label.

    Raises InputError with the place of what is wrong.
    """
    read = enumerate(rows(*files.values()))
    if not KINDS[recipe.data.kind].labelled:
        yield from read
        return
    (path,) = files.values()
    options = recipe.data.options
    for number, (line,) in islice(read, int(options.header), None):
        yield number, _cells(line, options, Mark(path, number + 1))


def _cells(line: str, options: Any, mark: Mark) -> tuple[str, str]:
    cells = line.split("\t")
    needed = max(options.text_column, options.label_column)
    if len(cells) < needed:
        message = f"the line has {len(cells)} columns, column {needed} is to be read"
        raise InputError(Fault("TFK115", message, "columns have tabs between them and count from 1", mark=mark))
    return cells[options.text_column - 1], cells[options.label_column - 1].strip()


def _parallel(numbered: Numbered, tokenisers: Mapping[str, TextTokeniser], recipe: Recipe) -> Iterator[Row]:
    for group in _groups(numbered):
        sides = [each.encode([texts[side] for _, texts in group]) for side, each in enumerate(tokenisers.values())]
        for (number, texts), *encoded in zip(group, *sides, strict=True):
            yield Row(number + 1, texts, tuple([*ids, END] for ids in encoded), tuple(map(len, encoded)))


def _language(numbered: Numbered, tokenisers: Mapping[str, TextTokeniser], recipe: Recipe) -> Iterator[Row]:
    width, left, at = recipe.batching.max_length, list[int](), 0
    for group in _groups(numbered):
        at = group[-1][0] + 1
        left += tokenisers["target"].encode(["".join(f"{texts[0]}\n" for _, texts in group)])[0]
        while len(left) > width:
            yield Row(at, ("",), (left[: width + 1],), (width,))
            left = left[width:]
    if len(left) > 1:
        yield Row(at, ("",), (left,), (len(left),))


def _whole(numbered: Numbered, tokenisers: Mapping[str, TextTokeniser], recipe: Recipe) -> Iterator[Row]:
    for group in _groups(numbered):
        for (number, texts), ids in zip(group, tokenisers["target"].encode([texts[0] for _, texts in group]), strict=True):
            label = texts[1] if len(texts) > 1 else None
            yield Row(number + 1, texts[:1], ([START, *ids, END],), (len(ids),), label)


def _groups(numbered: Numbered) -> Iterator[list[tuple[int, tuple[str, ...]]]]:
    while group := list(islice(numbered, GROUP)):
        yield group


KINDS = {
    "parallel": DataKind({"source": "source", "target": "target"}, _parallel),
    "language": DataKind({"target": "text"}, _language, sentences=False),
    "masked": DataKind({"target": "text"}, _whole, masks=True),
    "classification": DataKind({"target": "table"}, _whole, labelled=True),
}
