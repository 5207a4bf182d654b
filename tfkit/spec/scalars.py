"""The value of a plain scalar by the core schema of YAML 1.2 (https://yaml.org/spec/1.2.2/#103-core-schema).

`1e-5` and `010` are numbers, `yes` and `1_000` are text. PyYAML follows YAML 1.1, which reads all four differently.
"""

from __future__ import annotations

import re

NULL = frozenset({"", "~", "null", "Null", "NULL"})
BOOL = {"true": True, "True": True, "TRUE": True, "false": False, "False": False, "FALSE": False}
WHOLE = re.compile(r"[-+]?[0-9]+")
BASED = re.compile(r"0o[0-7]+|0x[0-9a-fA-F]+")
REAL = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
ENDLESS = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
LARGEST = 2**63 - 1
LARGEST_REAL = (2 - 2**-23) * 2.0**127
"""The largest number of float32. No weight, scale or bound of a model is larger."""


class BadNumber(ValueError):
    """The number is out of range for every field of a spec."""


def resolve(text: str) -> str | int | float | bool | None:
    """The value of an unquoted scalar. Raises BadNumber for infinities, NaN and whole numbers beyond 64 bits."""
    if text in NULL:
        return None
    if text in BOOL:
        return BOOL[text]
    if WHOLE.fullmatch(text):
        return _bounded(text, 10)
    if BASED.fullmatch(text):
        return _bounded(text[2:], 8 if text[1] == "o" else 16)
    if REAL.fullmatch(text):
        number = float(text)
        if abs(number) > LARGEST_REAL:
            raise BadNumber(f"the number is too large: at most {LARGEST_REAL:.3g}")
        return number
    if ENDLESS.fullmatch(text):
        raise BadNumber("the number is not finite")
    return text


def _bounded(digits: str, base: int) -> int:
    # Python refuses to convert thousands of digits, so the length is checked first.
    number = int(digits, base) if len(digits) <= 40 else LARGEST + 1
    if abs(number) > LARGEST:
        raise BadNumber(f"the number is too large: at most {LARGEST}")
    return number


def is_text(text: str) -> bool:
    """Whether a scalar is text without quotes."""
    try:
        return isinstance(resolve(text), str)
    except BadNumber:
        return False
