"""Pairs of pieces of running text for next-sentence prediction, as BERT makes them. https://aclanthology.org/N19-1423/

Lines are sentences, and an empty line ends a document. Sentences are collected until a row is full, and divided at a random
place into the pieces a and b. With probability 1/2, and always if there is one sentence only, b is replaced by sentences of
another document, and the sentences of b are used again. One row in ten has a random smaller size. A pair that is too long loses
tokens at the start of a and at the end of b.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from ..errors import InputError
from ..recipe import Recipe
from .corpus_row import GROUP, Numbered, Row
from .text_frame import PairFrame
from .text_lines import groups
from .tokeniser import TextTokeniser

BLOCK = 50_000
"""Sentences in memory at a time, at least; pieces of other documents come from the same block."""
SHORTEST = 5
"""The tokens of the shortest pair, special ones included."""
SHORT = 0.1
"""The share of rows with a random smaller size."""


@dataclass(frozen=True)
class Document:
    """The ids of the sentences of a document, and their lines, from 1."""

    sentences: list[list[int]]
    lines: list[int]


def sentence_pairs(numbered: Numbered, tokenisers: Mapping[str, TextTokeniser], recipe: Recipe) -> Iterator[Row]:
    """The rows of a text. They depend on the text, the tokeniser and the seed of the recipe. Raises InputError
    for a text of one document, or rows that are too short."""
    if recipe.batching.max_length < SHORTEST:
        message = f"rows have at most {recipe.batching.max_length} tokens, a pair has at least {SHORTEST}"
        raise InputError(recipe.diagnostic("TFK124", "batching.max_length", message, f"write at least {SHORTEST}"))
    for number, documents in enumerate(_blocks(_documents(numbered, tokenisers["target"]), recipe)):
        draw = np.random.Generator(np.random.PCG64([recipe.seed, number]))
        for at in range(len(documents)):
            yield from _rows_of(documents, at, tokenisers["target"].pair_frame, recipe.batching.max_length, draw)


def _documents(numbered: Numbered, tokeniser: TextTokeniser) -> Iterator[Document]:
    """The documents of a text that have a token."""
    document = Document([], [])
    for group in groups(numbered, GROUP):
        for (number, (text,)), ids in zip(group, tokeniser.encode([text for _, (text,) in group]), strict=True):
            if ids:
                document.sentences.append(ids)
                document.lines.append(number + 1)
            elif not text.strip() and document.sentences:
                yield document
                document = Document([], [])
    if document.sentences:
        yield document


def _blocks(documents: Iterator[Document], recipe: Recipe) -> Iterator[list[Document]]:
    """The documents in blocks of at least two."""
    block: list[Document] = []
    sentences = 0
    for document in documents:
        if len(block) > 2 and sentences >= BLOCK:  # the last one stays, so that no block has one document only
            yield block[:-1]
            block, sentences = block[-1:], len(block[-1].sentences)
        block.append(document)
        sentences += len(document.sentences)
    if len(block) == 1:
        message = "the text, or its held-out end, is one document, and pairs of sentences need several"
        fix = "write an empty line after each document; `data.held_out` holds out at least two documents"
        raise InputError(recipe.diagnostic("TFK124", "data", message, fix))
    if block:
        yield block


def _rows_of(documents: list[Document], at: int, frame: PairFrame, max_length: int, draw: np.random.Generator) -> Iterator[Row]:
    """The rows of a document with at most `max_length` tokens."""
    sentences, lines, room = documents[at].sentences, documents[at].lines, max_length - len(frame)
    start = 0
    while start < len(sentences):
        size = int(draw.integers(2, room + 1)) if draw.random() < SHORT else room
        end = _filled(sentences, start, size)
        middle = start + 1 if end == start + 1 else int(draw.integers(start + 1, end))
        first = [token for ids in sentences[start:middle] for token in ids]
        random = end == start + 1 or bool(draw.random() < 0.5)
        if random:
            other = documents[(at + int(draw.integers(1, len(documents)))) % len(documents)].sentences
            begin = int(draw.integers(len(other)))
            second = [token for ids in other[begin : _filled(other, begin, size - len(first))] for token in ids]
            end = middle
        else:
            second = [token for ids in sentences[middle:end] for token in ids]
        first, second = _cut(first, second, room)
        yield Row(lines[end - 1], ("",), (frame(first, second),), (len(first), len(second)), random=random)
        start = end


def _filled(sentences: list[list[int]], start: int, size: int) -> int:
    """The index after the shortest run of sentences from `start` that has `size` tokens, or after the last sentence."""
    end, tokens = start + 1, len(sentences[start])
    while end < len(sentences) and tokens < size:
        tokens += len(sentences[end])
        end += 1
    return end


def _cut(first: list[int], second: list[int], room: int) -> tuple[list[int], list[int]]:
    """Two pieces with at most `room` tokens together: the longer one is cut first, at its outer end."""
    kept = min(len(first), max(room - len(second), -(-room // 2)))
    return first[len(first) - kept :], second[: room - kept]
