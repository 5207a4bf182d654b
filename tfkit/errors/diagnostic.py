"""One error record: what is wrong, where, and what to do about it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Location:
    """A place in a file the user wrote. `line` and `column` count from 1, columns in characters.

    A mark without a file is false: it only tells the values of a Python mapping apart.
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
    """One thing that is wrong: what, where, the rule with its numbers, and what to do about it.

    `path` is the place inside the spec (`nodes.encoder.attention.num_heads`), `mark` the place in the file.
    """

    code: str
    message: str
    fix: str = ""
    path: str = ""
    location: Location | None = None

    def __str__(self) -> str:
        where = f"{self.location}: " if self.location else ""
        path = f"{self.path}: " if self.path else ""
        fix = f"; {self.fix}" if self.fix else ""
        return f"{where}{self.code} {path}{self.message}{fix}"

    def as_data(self) -> dict[str, object]:
        """The fault as `--json` prints it."""
        location = self.location
        return {
            "code": self.code,
            "message": self.message,
            "fix": self.fix or None,
            "path": self.path or None,
            "file": location.file if location else None,
            "line": location.line if location else None,
            "column": location.column if location else None,
        }
