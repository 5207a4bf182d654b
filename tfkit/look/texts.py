"""The texts of one page: their number, and the targets that belong to them."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import islice

from ..data import lines
from ..errors import Diagnostic, InputError, Location

MOST_TEXTS = 32
"""The largest number of texts of a page."""


def texts_in(file: str) -> list[str]:
    """The lines of a file, gzip or plain, as texts.

    Args:
        file: At most `MOST_TEXTS` lines, none of them empty.

    Returns:
        The texts.

    Raises:
        InputError: the file cannot be read, has no line, an empty line, or too many.
    """
    found = list(islice(lines(file), MOST_TEXTS + 1))
    if not found:
        raise InputError(Diagnostic("TFK103", f"{file} has no line", "write one text per line"))
    for number, text in enumerate(found, 1):
        if not text.strip():
            fix = "remove the line, or write a text there"
            raise InputError(Diagnostic("TFK103", "the line is empty", fix, location=Location(file, number)))
    if len(found) > MOST_TEXTS:
        fix = f"name a file with fewer lines: head -n {MOST_TEXTS} {file} > shorter.txt"
        raise InputError(Diagnostic("TFK161", f"{file} has more than {MOST_TEXTS} lines, the most texts of a page", fix))
    return found


def with_targets(texts: str | Sequence[str] | None, targets: str | Sequence[str] | None) -> list[tuple[str | None, str | None]]:
    """Each text with its target.

    Args:
        texts: One text or several; None: the model reads something else.
        targets: One target for each text; None: the model generates them.

    Returns:
        Pairs of text and target.

    Raises:
        InputError: there are too many texts, or another number of targets.
    """
    read = [texts] if texts is None or isinstance(texts, str) else list(texts)
    written = [targets] if isinstance(targets, str) else [None] * len(read) if targets is None else list(targets)
    if not 1 <= len(read) <= MOST_TEXTS:
        raise InputError(Diagnostic("TFK161", f"{len(read)} texts are given", f"a page has 1 to {MOST_TEXTS} texts"))
    if len(read) != len(written):
        message = f"the number of texts is {len(read)}, that of targets {len(written)}"
        raise InputError(Diagnostic("TFK102", message, "give one target for each text, in the same order, or none"))
    return list(zip(read, written, strict=True))
