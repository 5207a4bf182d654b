"""Sentences whose words have tags: two columns, a word and its tag on each line, and an empty line between sentences.

The corpus holds the pieces of all words as one row. The label of a word is at its first piece; the other pieces and the special
tokens have none. https://aclanthology.org/W03-0419/, https://aclanthology.org/N19-1423/
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from ..errors import Diagnostic, InputError, Location
from ..recipe import Recipe
from .corpus_row import GROUP, Numbered, Row
from .labels import label_fault
from .text_lines import groups, lines
from .tokeniser import TextTokeniser


def tagged_sentences(recipe: Recipe, path: str) -> Numbered:
    """The sentences of a file: their words, tags and lines, each joined by spaces. They are numbered from 0. Raises InputError
    for a line whose columns are not those of the others."""
    options = recipe.data.options
    needed = max(options.text_column, options.label_column)
    words: list[tuple[str, str, str]] = []
    width = number = line = 0
    for line, text in enumerate(lines(path), 1):
        cells, location = text.split(), Location(path, line)
        if not cells:
            if words:
                yield number, _joined(words)
                number, words = number + 1, []
            continue
        if len(cells) < needed:
            message = f"the line has {len(cells)} {'column' if len(cells) == 1 else 'columns'}, and a tag is in column {needed}"
            raise InputError(Diagnostic("TFK126", message, "write a word and its tag on each line", location=location))
        width = width or len(cells)
        if len(cells) != width:
            message = f"the line has {len(cells)} columns, the lines before have {width}"
            fix = "a word has no space; write an empty line between sentences"
            raise InputError(Diagnostic("TFK126", message, fix, location=location))
        if fault := label_fault(cells[options.label_column - 1]):
            raise InputError(Diagnostic("TFK126", fault, "write another label", location=location))
        words.append((cells[options.text_column - 1], cells[options.label_column - 1], str(line)))
    if words:
        yield number, _joined(words)
    elif not number:
        message = f"{path}: no line of {line:,} has text" if line else f"{path}: there is no line to read"
        raise InputError(Diagnostic("TFK103", message, "name a file that has text"))


def _joined(words: Sequence[tuple[str, str, str]]) -> tuple[str, ...]:
    return tuple(" ".join(column) for column in zip(*words, strict=True))


def tagged_rows(numbered: Numbered, tokenisers: Mapping[str, TextTokeniser], recipe: Recipe) -> Iterator[Row]:
    """The rows of sentences. `tags` holds the tag of each token that starts a word, and the line of the word."""
    frame = tokenisers["target"].text_frame
    for group in groups(numbered, GROUP):
        split = [tuple(column.split(" ") for column in texts) for _, texts in group]
        pieces = iter(word_pieces([word for words, _, _ in split for word in words], tokenisers["target"]))
        for (_, texts), (words, tags, numbers) in zip(group, split, strict=True):
            ids, labels = list(frame.before), list[tuple[str, int] | None]([None] * len(frame.before))
            for _, tag, line in zip(words, tags, numbers, strict=True):
                word_ids = next(pieces)
                ids += word_ids
                labels += [(tag, int(line)), *[None] * (len(word_ids) - 1)]
            bare, after = len(ids) - len(frame.before), [None] * len(frame.after)
            yield Row(int(numbers[-1]), texts[:1], ([*ids, *frame.after],), (bare,), tags=[*labels, *after])


def word_pieces(words: Sequence[str], tokeniser: TextTokeniser) -> list[list[int]]:
    """Token ids of each word; the unknown token for a word without pieces."""
    return [ids or [tokeniser.unknown_id] for ids in tokeniser.encode(list(words))]
