"""What a caller passes: whole numbers and real numbers in a range, and lists of texts. The errors for all others."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

from .diagnostic import Diagnostic
from .exceptions import InputError

MOST = 2**63 - 1
"""The largest integer of torch."""


def check_whole(name: str, value: Any, smallest: int = 1, largest: int = MOST, code: str = "TFK078") -> None:
    """Raises InputError if a setting is not a whole number in a range."""
    if not isinstance(value, int) or isinstance(value, bool) or not smallest <= value <= largest:
        rule = f"it is a whole number from {smallest} " + ("up" if largest == MOST else f"to {largest:,}")
        raise InputError(Diagnostic(code, f"{name} is {in_words(value)}", rule))


def check_number(name: str, value: Any, largest: float, zero: str = "") -> None:
    """Raises InputError if a setting is not a number from 0 up to another; `zero` says what 0 means."""
    if not isinstance(value, (int, float)) or isinstance(value, bool) or not 0 <= value <= largest:
        rule = f"it is a number from 0{f' ({zero})' if zero else ''} to {largest:,.0f}"
        raise InputError(Diagnostic("TFK078", f"{name} is {in_words(value)}", rule))


def check_list(items: object, of: str = "texts") -> None:
    """Raises InputError for one text, which Python takes for a list of letters."""
    if isinstance(items, (str, bytes)):
        message = f"a list of {of} is expected, and this is one {type(items).__name__} of {len(items):,}"
        raise InputError(Diagnostic("TFK104", message, f"write it in brackets, `[{of[:-1]}]`"))


def check_texts(texts: Iterable[Any]) -> None:
    """Raises InputError for what is no list of texts."""
    check_list(texts)
    for text in texts:
        if not isinstance(text, str):
            message = f"a text must be a str, and one is of type {type(text).__name__}"
            raise InputError(Diagnostic("TFK104", message, "pass a list of texts"))


def check_characters(text: str, code: str, what: str, fix: str) -> None:
    """Raises InputError for a text with half of a pair of surrogates: Python reads a byte that is no UTF-8 so."""
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise InputError(Diagnostic(code, f"{what} is no UTF-8", fix)) from None


def in_words(value: Any) -> str:
    """A wrong value in a message. Python writes no integer of more than some thousand digits."""
    if isinstance(value, int) and abs(value) > MOST:
        digits = math.floor(math.log10(abs(value))) + 1  # rounded up for 999...
        return f"a number of {digits - (abs(value) < 10 ** (digits - 1)):,} digits"
    return repr(value)[:80]
