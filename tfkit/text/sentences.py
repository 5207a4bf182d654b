"""Lines that are divided into sentences, and their translations joined again. The library sentencex of the Wikimedia Foundation
divides them, by rules and lists of abbreviations for some 300 languages."""

from __future__ import annotations

import re
import unicodedata
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from itertools import count
from typing import TYPE_CHECKING

import torch

from ..errors import BuildError, Diagnostic, InputError
from ..generate import Hypothesis

if TYPE_CHECKING:
    from .translator import Translation

CODE = re.compile(r"[a-z]{2,3}([-_]\w{2,8}){0,3}")


class SentenceSplitter:
    """Divides lines, and joins what became of their sentences.

    Args:
        language: The code of the language of the lines, such as `en`.

    Raises:
        InputError: It is no code of a language.
        BuildError: sentencex is not installed.
    """

    def __init__(self, language: str) -> None:
        if not isinstance(language, str) or not CODE.fullmatch(language):
            message = f"the language of the sentences is {language!r}"[:100]
            raise InputError(Diagnostic("TFK078", message, "it is a code such as `en`, `de` or `zh`"))
        try:
            from sentencex import segment
        except ImportError:
            message = "dividing lines into sentences needs sentencex, which is not installed"
            raise BuildError(Diagnostic("TFK097", message, "pip install 'tfkit[split]'")) from None
        self.language = language
        self._segment: Callable[[str, str], list[str]] = segment
        self._lines: deque[tuple[str, int]] = deque()
        self._counts: deque[int] = deque()  # of the lines whose prefix was not read

    def sentences(self, lines: Iterable[str]) -> Iterator[str]:
        """The sentences of all lines, without white space around them; one that is empty for a line without text."""
        for line in lines:
            parts = [part.strip() for part in self._segment(self.language, line)] if isinstance(line, str) else [line]
            parts = [part for part in parts if part] or [""]
            self._lines.append((line, len(parts)))
            self._counts.append(len(parts))
            yield from parts

    def prefixes(self, prefixes: Iterable[str]) -> Iterator[str]:
        """The prefix of each sentence that `sentences` has returned: that of its line for the first one, none for the others.
        Raises InputError if there are not as many prefixes as lines."""
        remaining = iter(prefixes)
        for number in count():
            prefix = next(remaining, None)
            if (prefix is None) != (not self._counts):
                which = ("prefixes", "lines") if prefix is None else ("lines", "prefixes")
                message = f"there are {number:,} {which[0]}, and more {which[1]}"
                raise InputError(Diagnostic("TFK078", message, "give one prefix for each line, which may be empty"))
            if prefix is None:
                return
            yield prefix
            yield from [""] * (self._counts.popleft() - 1)

    def joined(self, translations: Iterator[Translation]) -> Iterator[Translation]:
        """The translation of each line from those of its sentences, in order."""
        for first in translations:
            line, size = self._lines.popleft()
            parts = [first, *(next(translations) for _ in range(size - 1))]
            yield replace(first, source=line) if size == 1 else _joined(line, parts)


def _joined(line: str, parts: list[Translation]) -> Translation:
    """One translation of several: texts with a space between them, sums of log-probabilities."""
    text = ""
    for part in parts:
        wide = bool(text) and unicodedata.east_asian_width(text[-1]) in "WF"  # of scripts without spaces
        text += part.text if wide or not text else f" {part.text}"
    hypotheses = [part.hypotheses[0] for part in parts if part.hypotheses]
    if not hypotheses:
        return replace(parts[0], source=line)
    total = sum(one.log_probability for one in hypotheses)
    joined = Hypothesis(
        torch.cat([one.ids for one in hypotheses]), total, total,
        torch.cat([one.token_log_probabilities for one in hypotheses]), all(one.finished for one in hypotheses),
    )  # fmt: skip
    return replace(
        parts[0],
        source=line,
        texts=(text,),
        hypotheses=(joined,),
        pieces=(tuple(piece for part in parts if part.pieces for piece in part.pieces[0]),),
        source_ids=tuple(number for part in parts for number in part.source_ids),
        cut=sum(part.cut for part in parts),
        unknown=sum(part.unknown for part in parts),
    )
