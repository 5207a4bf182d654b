"""Checks the structure of a stored case: the fields that the law draws, in sizes that fit into memory."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod
from random import Random
from typing import Any

from .law import Law
from .part import Excluded, PartUnderTest, Structure

LARGEST, MOST = 1 << 18, 1 << 32
"""The largest number of a structure, and the most that its sizes may multiply to."""
LONGEST = 100
"""The most characters of a text, and the most texts of a list."""
PLACES = ("start", "shift")
"""Numbers of a structure that are positions and no sizes."""
DRAWS = 20


def misfit(law: Law, subject: PartUnderTest, options: Any, at: Mapping[str, Any]) -> str:
    """Why a law has no case of this structure, in words; nothing where it may have one."""
    wrong = next((reason for name, value in at.items() if (reason := _wrong(name, value, law.shrinks.get(name)))), "")
    if wrong:
        return wrong
    like = _drawn(law, subject, options)
    if like is not None and any(type(at.get(name)) is not type(value) for name, value in like.items()):
        due = ", ".join(f"`{name}` ({type(value).__name__})" for name, value in sorted(like.items()))
        return f"`at` of the law `{law.name}` needs {due}"
    sizes = prod(value for name, value in at.items() if name not in PLACES and type(value) is int and value > 0)
    return f"the sizes in `at` multiply to {sizes:,}, more than {MOST:,}" if sizes > MOST else ""


def _wrong(name: str, value: Any, least: int | None) -> str:
    if isinstance(value, bool):
        return ""
    if isinstance(value, int):
        low = least if least else -LARGEST  # a size is 1 at least; an exponent is made smaller towards 0
        return "" if low <= value <= LARGEST else f"`at.{name[:40]}` is {str(value)[:40]}, not a number from {low} to {LARGEST}"
    texts = value if isinstance(value, list) else [value]
    if 0 < len(texts) <= LONGEST and all(isinstance(text, str) and 0 < len(text) <= LONGEST for text in texts):
        return ""
    return f"`at.{name[:40]}` is no whole number, truth value, short text or list of these texts"


def _drawn(law: Law, subject: PartUnderTest, options: Any) -> Structure | None:
    """A structure that the law draws; None where it draws none."""
    for seed in range(DRAWS):
        try:
            return law.draw(subject, options, Random(seed))
        except Excluded:
            return None
        except Exception:  # none from this seed, or the part fails when it is asked: then it is evaluated as the case says
            continue
    return None
