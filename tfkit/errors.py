"""What can go wrong, as one tree; every fault has a stable code that `tfkit explain` knows.

    TfkitError                 carries one or more faults
    ├── SpecError              the spec, or a --set, is wrong: all its faults at once
    ├── PluginError            a plugin broke the contract of a slot
    ├── BackendRefused         an attention backend cannot do what a site asks: every reason, and who could
    ├── InputError             a tensor or argument given to a built model is wrong (also a ValueError)
    ├── BuildError             a correct spec cannot be built here: too large, a part's build function failed
    ├── StoreError             a saved model cannot be written or read
    └── TrainingError          a correct recipe came to numbers that are none

The text of a message may change between releases; its code and its meaning do not (see `tfkit.codes`).
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, order=True)
class Mark:
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
class Fault:
    """One thing that is wrong: what, where, the rule with its numbers, and what to do about it.

    `path` is the place inside the spec (`nodes.encoder.attention.num_heads`), `mark` the place in the file.
    """

    code: str
    message: str
    fix: str = ""
    path: str = ""
    mark: Mark | None = None

    def __str__(self) -> str:
        where = f"{self.mark}: " if self.mark else ""
        path = f"{self.path}: " if self.path else ""
        fix = f"; {self.fix}" if self.fix else ""
        return f"{where}{self.code} {path}{self.message}{fix}"

    def as_data(self) -> dict[str, object]:
        """The fault as `--json` prints it."""
        mark = self.mark
        return {
            "code": self.code,
            "message": self.message,
            "fix": self.fix or None,
            "path": self.path or None,
            "file": mark.file if mark else None,
            "line": mark.line if mark else None,
            "column": mark.column if mark else None,
        }


class TfkitError(Exception):
    """Base of every error that tfkit raises on purpose. `faults` is never empty; `elsewhere` says that another process, with
    which this one trains, raises it too and tells it."""

    elsewhere = False

    def __init__(self, faults: Fault | Iterable[Fault]) -> None:
        self.faults: tuple[Fault, ...] = (faults,) if isinstance(faults, Fault) else tuple(faults)
        super().__init__("\n".join(map(str, self.faults)))

    def __reduce__(self) -> tuple[object, ...]:
        return (type(self), (self.faults,))


class SpecError(TfkitError):
    """What the user wrote is not a spec."""


class PluginError(TfkitError):
    """A plugin broke the contract of its slot."""


class BackendRefused(TfkitError):
    """No allowed attention backend can do what a site asks."""


class InputError(TfkitError, ValueError):
    """A tensor or argument given to a built model is wrong."""


class BuildError(TfkitError):
    """A correct spec cannot be built here."""


class StoreError(TfkitError):
    """A saved model cannot be written or read."""


class TrainingError(TfkitError):
    """Training came to numbers that are none."""
