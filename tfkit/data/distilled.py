"""Sequence-level distillation: the target of a training row is a translation of a teacher, the one that is nearest to the
reference. https://aclanthology.org/D16-1139/ (sequence-level interpolation)

The file is what `tfkit translate --n-best N` prints for the source: on each line the number of the source line, a score and a
text, with tabs between them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from itertools import groupby, zip_longest

import numpy as np
from numpy.typing import NDArray

from ..distribution import install_line
from ..errors import BuildError, Diagnostic, InputError, Location
from .corpus_row import Numbered
from .text_lines import lines

MAX_HYPOTHESES = 256
"""The most translations of one line."""
MAX_TEXT = 10_000
"""The longest translation, in characters."""


def distilled_rows(rows: Numbered, path: str, chosen: NDArray[np.uint8]) -> Numbered:
    """Some rows of a corpus, in their order, with the translation of the teacher as their last text: that of `nearest`, from
    the translations of all rows in the file."""
    groups, number, texts = translations(path), -1, [""]
    for wanted, (*others, _) in rows:
        while number < wanted:
            number, texts = number + 1, next(groups)
        yield wanted, (*others, texts[chosen[number]])


def nearest(path: str, target: str) -> NDArray[np.uint8]:
    """For each line of the references, which translation has the highest chrF with it; the first of equals. Raises InputError
    or BuildError."""
    try:
        from sacrebleu import CHRF
    except ImportError:
        fix = install_line("train")
        raise BuildError(Diagnostic("TFK097", "`distilled` needs the package sacrebleu, not installed here", fix)) from None
    chrf, chosen = CHRF(), bytearray()
    for texts, reference in zip_longest(translations(path), lines(target)):
        if texts is None or reference is None:
            count, translated = (sum(1 for _ in items) for items in (lines(target), translations(path)))
            counts = f"{target} has {count:,}, {path} has translations of {translated:,}"
            fix = f"translate the source of these lines: `tfkit translate TEACHER --n-best N < SOURCE > {path}`"
            raise InputError(Diagnostic("TFK102", f"the files have different numbers of lines: {counts}", fix))
        scores = [chrf.sentence_score(text, [reference]).score for text in texts] if len(texts) > 1 else [0.0]
        chosen.append(scores.index(max(scores)))
    return np.frombuffer(bytes(chosen), dtype=np.uint8)


def translations(path: str) -> Iterator[list[str]]:
    """The translations of each line of the source, in order. Raises InputError."""
    wanted = 1
    for number, group in groupby(_numbered(path), lambda line: line[0]):
        texts: list[str] = []
        for _, at, text in group:
            if number != wanted:
                message = f"translations of line {number:,}, where those of line {wanted:,} are expected"
                raise _wrong(message, path, at)
            if len(texts) == MAX_HYPOTHESES:
                raise _wrong(f"line {number:,} has more than {MAX_HYPOTHESES} translations", path, at)
            texts.append(text)
        yield texts
        wanted += 1


def _numbered(path: str) -> Iterator[tuple[int, int, str]]:
    """The number of the source line, the line of the file, and the text, of each translation."""
    for at, line in enumerate(lines(path), 1):
        number, *rest = line.split("\t")
        if not (number.isascii() and number.isdigit() and len(number) <= 10 and len(rest) in (2, 3) and _is_score(rest[0])):
            raise _wrong("not a number, a score and a text with tabs between them", path, at)
        if len(rest[1]) > MAX_TEXT:
            raise _wrong(f"the translation has {len(rest[1]):,} characters, {MAX_TEXT:,} is the limit", path, at)
        yield int(number), at, rest[1]


def _is_score(text: str) -> bool:
    try:
        return not text or math.isfinite(float(text))  # an empty line has no score
    except ValueError:
        return False


def _wrong(message: str, path: str, line: int) -> InputError:
    fix = "`tfkit translate TEACHER --n-best N < SOURCE` prints this form"
    return InputError(Diagnostic("TFK134", message, fix, location=Location(path, line)))
