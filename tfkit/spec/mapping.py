"""Reads a Python mapping into located values. Its errors have paths but no locations in a file."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from math import isfinite
from typing import Any

from ..errors import Location
from .located import INVALID, Diagnostics, Located, child_path, short
from .reader import FORBIDDEN, MAX_DEPTH, MAX_VALUES
from .scalars import LARGEST, LARGEST_REAL


def read_mapping(mapping: Mapping[str, Any], diagnostics: Diagnostics) -> Located:
    """The located form of a Python mapping. Adds errors about single values to `diagnostics`. Raises SpecError if the mapping
    is too large or too deep, as one that contains itself is."""
    return _Reader(diagnostics).read(mapping, "", 0)


class _Reader:
    def __init__(self, diagnostics: Diagnostics) -> None:
        self.diagnostics = diagnostics
        self.numbers = count(1)

    def read(self, value: Any, path: str, depth: int) -> Located:
        location = Location("", next(self.numbers))  # without a file: it distinguishes values and is never shown
        if location.line > MAX_VALUES:
            self.diagnostics.fatal("TFK001", location, "", f"the spec holds more than {MAX_VALUES} values")
        if depth > MAX_DEPTH:
            self.diagnostics.fatal("TFK001", location, path, f"values are nested deeper than {MAX_DEPTH}")
        if isinstance(value, Mapping):
            children: dict[str, Located] = {}
            for key, child in value.items():
                if isinstance(key, str):
                    children[str(key)] = self.read(child, child_path(path, short(key)), depth + 1)
                else:
                    self.diagnostics.add("TFK006", location, path, f"a key is a plain name, not {short(repr(key))}")
            return Located(children, location, path, key=location)
        if isinstance(value, (list, tuple)):
            items = [self.read(child, child_path(path, number), depth + 1) for number, child in enumerate(value)]
            return Located(items, location, path, key=location)
        return self.scalar(value, location, path)

    def scalar(self, value: Any, location: Location, path: str) -> Located:
        text = {None: "null", True: "true", False: "false"}[value] if value is None or isinstance(value, bool) else str(value)
        if isinstance(value, str) and (bad := FORBIDDEN.search(value)):
            self.diagnostics.add("TFK003", location, path, f"the character U+{ord(bad[0]):04X} is not allowed in a spec")
        elif isinstance(value, (int, float)) and not abs(value) <= (LARGEST if isinstance(value, int) else LARGEST_REAL):
            why = "too large" if isfinite(value) else "not finite"
            self.diagnostics.add("TFK008", location, path, f"the number is {why}, `{short(text)}` is written")
        elif value is not None and not isinstance(value, (str, int, float)):
            message = f"text, a number, true, false, null, a list or a mapping is expected, a {type(value).__name__} is given"
            self.diagnostics.add("TFK020", location, path, message)
        else:
            return Located(value, location, path, text, location)
        return Located(INVALID, location, path, text, location)
