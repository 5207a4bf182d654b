"""One error: the message, its location, and the fix."""

from __future__ import annotations

from dataclasses import dataclass

MAX_TEXT = 10_000
"""Characters of a message, a fix or a path that are printed: they quote files of other people."""


def cut(text: str, most: int = MAX_TEXT) -> str:
    """The beginning of a text that is longer than `most`, with the number of its characters."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """A place in a file of the user. A location without a file, for values of a Python mapping, is false.

    Args:
        file: the path; empty for a Python mapping.
        line: the line, from 1.
        column: the column in characters, from 1.
    """

    file: str
    line: int = 1
    column: int = 1

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"

    def __bool__(self) -> bool:
        return bool(self.file)


@dataclass(frozen=True, slots=True)
class Diagnostic:
    """One error.

    Args:
        code: the stable code, `TFK012`.
        message: the error, with the rule and its numbers.
        fix: how to repair it.
        path: the place inside the spec: `nodes.encoder.attention.num_heads`.
        location: the place in the file.
    """

    code: str
    message: str
    fix: str = ""
    path: str = ""
    location: Location | None = None

    def __str__(self) -> str:
        where = f"{self.location}: " if self.location else ""
        path = f"{cut(self.path)}: " if self.path else ""
        fix = f"; {cut(self.fix)}" if self.fix else ""
        return f"{where}{self.code} {path}{cut(self.message)}{fix}"

    def as_data(self) -> dict[str, object]:
        """The error as `--json` prints it.

        Returns:
            code, message, fix, path, file, line and column; None for those that are unknown.
        """
        location = self.location
        return {
            "code": self.code,
            "message": cut(self.message),
            "fix": cut(self.fix) or None,
            "path": cut(self.path) or None,
            "file": location.file if location else None,
            "line": location.line if location else None,
            "column": location.column if location else None,
        }
