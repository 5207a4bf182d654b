"""Lines that are divided into sentences, and what belongs to them collected again.

sentencex, a library of the Wikimedia Foundation, divides them by rules and lists of abbreviations for some 300 languages."""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import TypeVar

from ..distribution import install_line
from ..errors import BuildError, Diagnostic, InputError

Result = TypeVar("Result")
CODE = re.compile(r"[a-z]{2,3}([-_]\w{2,8}){0,3}")


class SentenceSplitter:
    """Divides lines of a language, such as `en`, and collects what became of their sentences. Raises InputError if it is no
    code of a language, BuildError if sentencex is not installed."""

    def __init__(self, language: str) -> None:
        if not isinstance(language, str) or not CODE.fullmatch(language):
            message = f"the language of the sentences is {language!r}"[:100]
            raise InputError(Diagnostic("TFK078", message, "it is a code such as `en`, `de` or `zh`"))
        try:
            from sentencex import segment
        except ImportError:
            message = "dividing lines into sentences needs sentencex, which is not installed"
            raise BuildError(Diagnostic("TFK097", message, install_line("split"))) from None
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

    def by_line(self, results: Iterator[Result]) -> Iterator[tuple[str, list[Result]]]:
        """Each line with the results of its sentences, from the results of all sentences in their order."""
        for first in results:
            line, size = self._lines.popleft()
            yield line, [first, *(next(results) for _ in range(size - 1))]
