"""Errors about files that the user did not name. A spec from elsewhere may name any file; no error may print its text."""

from __future__ import annotations

import os
import re

from .diagnostic import Diagnostic

ABOUT_THE_FILE = frozenset({"TFK000", "TFK001"})
"""Codes whose messages quote nothing."""
QUOTED = re.compile('[`"].*[`"]', re.DOTALL)
"""From the first to the last quoted text: a text may hold such marks itself."""


def is_beside(path: str | os.PathLike[str], folder: str | os.PathLike[str]) -> bool:
    """Whether a file lies in a folder or below it, after all links."""
    try:
        home = os.path.realpath(folder)
        return os.path.commonpath([os.path.realpath(path), home]) == home
    except ValueError:  # a name with a NUL
        return False


def without_text(diagnostic: Diagnostic, named_by: str) -> Diagnostic:
    """The error with place and rule, and without the text of its file.

    Args:
        diagnostic: the error.
        named_by: what names the file, for the message.
    """
    from .codes import CODES

    message = diagnostic.message if diagnostic.code in ABOUT_THE_FILE else CODES[diagnostic.code].title
    file = diagnostic.location.file if diagnostic.location else ""
    fix = f"its text is not shown, because it lies elsewhere than {named_by}; `tfkit check {file}` shows it"
    return Diagnostic(diagnostic.code, message, fix, "", diagnostic.location)


def without_quotes(diagnostic: Diagnostic) -> Diagnostic:
    """The error with all quoted text left out of its message and its fix."""
    message, fix = (QUOTED.sub("...", text) for text in (diagnostic.message, diagnostic.fix))
    return Diagnostic(diagnostic.code, message, fix, diagnostic.path, diagnostic.location)
