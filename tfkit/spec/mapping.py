"""A spec that is a Python mapping, as marked values. Its faults have paths and no places in a file."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import count
from math import isfinite
from typing import Any

from ..errors import Mark
from .located import HOLE, Faults, Marked, child_path, short
from .reader import FORBIDDEN, MAX_DEPTH, MAX_VALUES
from .scalars import LARGEST


def read_mapping(given: Mapping[str, Any], faults: Faults) -> Marked:
    """The marked mapping that a Python mapping says. Raises SpecError where it is too deep or too large, which one that holds
    itself is; values that no spec can hold go to `faults`."""
    return _Reader(faults).read(given, "", 0)


class _Reader:
    def __init__(self, faults: Faults) -> None:
        self.faults = faults
        self.numbers = count(1)

    def read(self, value: Any, path: str, depth: int) -> Marked:
        mark = Mark("", next(self.numbers))  # no file: it tells values apart and is never shown
        if mark.line > MAX_VALUES:
            self.faults.fatal("TFK001", mark, "", f"the spec holds more than {MAX_VALUES} values")
        if depth > MAX_DEPTH:
            self.faults.fatal("TFK001", mark, path, f"values are nested deeper than {MAX_DEPTH}")
        if isinstance(value, Mapping):
            found: dict[str, Marked] = {}
            for key, child in value.items():
                if isinstance(key, str):
                    found[str(key)] = self.read(child, child_path(path, short(key)), depth + 1)
                else:
                    self.faults.add("TFK006", mark, path, f"a key is a plain name, not {short(repr(key))}")
            return Marked(found, mark, path, key=mark)
        if isinstance(value, (list, tuple)):
            items = [self.read(child, child_path(path, number), depth + 1) for number, child in enumerate(value)]
            return Marked(items, mark, path, key=mark)
        return self.scalar(value, mark, path)

    def scalar(self, value: Any, mark: Mark, path: str) -> Marked:
        text = {None: "null", True: "true", False: "false"}[value] if value is None or isinstance(value, bool) else str(value)
        if isinstance(value, str) and (bad := FORBIDDEN.search(value)):
            self.faults.add("TFK003", mark, path, f"the character U+{ord(bad[0]):04X} may not stand in a spec")
        elif isinstance(value, (int, float)) and (not isfinite(value) or (isinstance(value, int) and abs(value) > LARGEST)):
            why = "too large for 64 bits" if isfinite(value) else "not finite"
            self.faults.add("TFK008", mark, path, f"the number is {why}, `{short(text)}` is written")
        elif value is not None and not isinstance(value, (str, int, float)):
            message = f"text, a number, true, false, null, a list or a mapping is expected, a {type(value).__name__} is given"
            self.faults.add("TFK020", mark, path, message)
        else:
            return Marked(value, mark, path, text, mark)
        return Marked(HOLE, mark, path, text, mark)
