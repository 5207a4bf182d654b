"""A value with its location in a file. Specs are merged as trees of these values, so that an inherited value keeps the location
of its own line."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, NoReturn

from ..errors import Diagnostic, Location, SpecError
from ..errors.elsewhere import without_text
from .scalars import is_text

MAX_DIGITS = 6
"""Of the number of an item. Longer ones are no items: a spec holds fewer values."""


class Invalid:
    """Replaces a value that has an error, so that no second error reports it."""

    def __repr__(self) -> str:
        return "INVALID"


INVALID: Final = Invalid()


@dataclass(frozen=True, slots=True)
class Located:
    """A value of a spec with its location.

    Args:
        value: a scalar, a list of `Located`, a mapping from names to `Located`, or `INVALID`.
        location: where the value was written.
        path: the path under which it was written (`defaults.norm.eps`), even after inheritance.
        text: the spelling of a scalar.
        key: where its key was written.
    """

    value: Any
    location: Location
    path: str = ""
    text: str = ""
    key: Location | None = None

    @property
    def mapping(self) -> dict[str, Located]:
        """Its children by name; empty if it is not a mapping."""
        return self.value if isinstance(self.value, dict) else {}

    @property
    def items(self) -> list[Located]:
        """Its children in order; empty if it is not a list."""
        return self.value if isinstance(self.value, list) else []

    def get(self, name: str) -> Located | None:
        return self.mapping.get(name)

    def holding(self, value: Any) -> Located:
        """The same location with another value."""
        return replace(self, value=value)

    @property
    def kind(self) -> str | None:
        """The name in `kind`, if there is one."""
        kind = self.get("kind")
        return kind.value if kind is not None and isinstance(kind.value, str) else None

    @property
    def shown(self) -> str:
        """The written value, for a message."""
        if isinstance(self.value, dict):
            return "a mapping is written"
        if isinstance(self.value, list):
            return "a list is written"
        if self.value is None and self.text in ("", "null"):
            return "nothing is written"
        if isinstance(self.value, str) and not is_text(self.text):  # it was in quotes
            return f'`"{short(self.text)}"` is written'
        return f"`{short(self.text)}` is written"


def short(text: str, limit: int = 60) -> str:
    """Text for a message: one line of at most `limit` characters."""
    text = " ".join(text.split()) or text[:1]
    text = "".join(letter if letter.isprintable() else "?" for letter in text[: limit + 1])
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def plain(node: Located) -> Any:
    """The value without its locations."""
    if isinstance(node.value, dict):
        return {name: plain(child) for name, child in node.value.items()}
    if isinstance(node.value, list):
        return [plain(child) for child in node.value]
    return node.value


def item_number(step: str | int) -> int | None:
    """The number that a step of a path to an item of a list is, without zeros before it, or None."""
    text = str(step)
    number = int(text) if text.isascii() and text.isdecimal() and len(text) <= MAX_DIGITS else None
    return number if str(number) == text else None


def child_path(path: str, name: str | int) -> str:
    return f"{path}.{name}" if path else str(name)


class Diagnostics:
    """The errors found so far. An error that many nodes inherit has one location and is kept once."""

    LIMIT = 500

    def __init__(self) -> None:
        self._found: dict[tuple[str, Location | None, str], Diagnostic] = {}
        self.elsewhere: dict[str, str] = {}  # files whose text no error may quote, and what names each
        self.meant: set[str] = set()  # names that a misspelt key probably meant; they are not reported as missing

    def __len__(self) -> int:
        return len(self._found)

    def add(self, code: str, location: Location, path: str, message: str, fix: str = "") -> None:
        """Adds an error. Raises SpecError with all errors so far if there are `LIMIT` of them."""
        self._found.setdefault((code, location, message), Diagnostic(code, message, fix, path, location))
        if len(self._found) >= self.LIMIT:
            self._found["TFK001", None, ""] = Diagnostic(
                "TFK001", f"there are more than {self.LIMIT} errors", "these are the first"
            )
            raise self.error()

    def extend(self, diagnostics: Iterable[Diagnostic]) -> None:
        for diagnostic in diagnostics:
            self._found.setdefault((diagnostic.code, diagnostic.location, diagnostic.message), diagnostic)

    def fatal(self, code: str, location: Location, path: str, message: str, fix: str = "") -> NoReturn:
        """Raises SpecError with this error and those found before."""
        self.extend([Diagnostic(code, message, fix, path, location)])
        raise self.error()

    def stop(self) -> None:
        """Raises SpecError if there is any error."""
        if self._found:
            raise self.error()

    def error(self) -> SpecError:
        """All errors as one exception, sorted by place."""
        diagnostics = sorted(self._found.values(), key=_place)
        return SpecError(dict.fromkeys(self._shown(diagnostic) for diagnostic in diagnostics))

    def _shown(self, diagnostic: Diagnostic) -> Diagnostic:
        file = diagnostic.location.file if diagnostic.location else ""
        return without_text(diagnostic, self.elsewhere[file]) if file in self.elsewhere else diagnostic


def _place(diagnostic: Diagnostic) -> tuple[bool, str, int, int, str]:
    location = diagnostic.location or Location("")
    return diagnostic.location is None, location.file, location.line, location.column, diagnostic.code
