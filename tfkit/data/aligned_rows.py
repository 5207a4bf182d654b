"""The links of the words of rows of a corpus, and of their tokens."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from itertools import chain

from ..errors import Diagnostic, InputError, Location
from .corpus_row import Row
from .pharaoh import Link, read_gold_links
from .piece_words import Words, encode_with_words
from .tokeniser import TextTokeniser

MAX_PAIRS = 1_000_000
"""The most links of the tokens of a row: a link of two long words is one of each token of one with each of the other."""


class AlignedRows:
    """Reads a file of links, checked by `check_links`, in step with the rows of a corpus, which come in their order. The file
    counts the words after `prefix`, which was put before every source; the rows have it."""

    def __init__(self, path: str, tokenisers: Mapping[str, TextTokeniser], prefix: str | None = None) -> None:
        self.path, self.tokenisers, self.before = path, tokenisers, len((prefix or "").split())
        self._lines, self._read = read_gold_links(path), 0

    def words(self, row: Row) -> list[int]:
        """Source word, target word, and 1 for a sure link or 0 for a possible one, of each link of a row."""
        sure, possible = self._links(row)
        return list(chain.from_iterable((*link, int(link in sure)) for link in sorted(possible)))

    def tokens(self, row: Row) -> list[int]:
        """Source and target token of each link of a row, sure or possible; a link of words holds for all their pieces."""
        _, links = self._links(row)
        sources, targets = (
            words_of_row(self.tokenisers[column], text) for column, text in zip(("source", "target"), row.texts, strict=True)
        )
        places, by_target = defaultdict[int, set[int]](set), defaultdict[int, set[int]](set)
        for place, words in enumerate(sources):
            for word in words:
                places[word].add(place)
        for source, target in links:
            by_target[target].add(source)
        pairs: list[tuple[int, int]] = []
        for at, words in enumerate(targets):
            linked = set[int]().union(*(places[source] for word in words for source in by_target[word]))
            pairs += [(place, at) for place in sorted(linked)]
            if len(pairs) > MAX_PAIRS:
                message = f"the links of the words are more than {MAX_PAIRS:,} links of their tokens"
                raise InputError(Diagnostic("TFK137", message, "divide the line", location=Location(self.path, row.line)))
        return list(chain.from_iterable(pairs))

    def _links(self, row: Row) -> tuple[frozenset[Link], frozenset[Link]]:
        """The sure links of the words of a row, and all. Raises InputError for a word that it does not have."""
        sure, possible = frozenset[Link](), frozenset[Link]()
        while self._read < row.line:
            sure, possible = next(self._lines)
            self._read += 1
        for side, text in enumerate(row.texts):
            count = max(0, len(text.split()) - (0 if side else self.before))
            last = max((link[side] for link in possible), default=-1)
            if last >= count:
                name = ("source", "target")[side]
                message = f"a link names word {last} of the {name}, which has {count:,} words"
                fix = "words are the parts between white space, counted from 0"
                raise InputError(Diagnostic("TFK137", message, fix, location=Location(self.path, row.line)))
        return self._after_prefix(sure), self._after_prefix(possible)

    def _after_prefix(self, links: frozenset[Link]) -> frozenset[Link]:
        return frozenset((source + self.before, target) for source, target in links)


def words_of_row(tokeniser: TextTokeniser, text: str) -> list[Words]:
    """The words of each token of a side of a row, special tokens included."""
    frame, (_, words) = tokeniser.source_frame, encode_with_words(tokeniser, text)
    return [*[range(0)] * len(frame.before), *words, *[range(0)] * len(frame.after)]


def check_links(path: str, rows: int, other: str) -> None:
    """Raises InputError unless a file has the links of so many rows of another file."""
    count = sum(1 for _ in read_gold_links(path))
    if count != rows:
        message = f"the files have different numbers of lines: {other} has {rows:,}, {path} has {count:,}"
        raise InputError(Diagnostic("TFK102", message, "line n has the links of row n; write an empty line for a row without"))
