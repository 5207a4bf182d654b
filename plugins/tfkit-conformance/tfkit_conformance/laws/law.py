"""A law: a property of every part of a slot, or of every part that claims it, checked on drawn cases.

A case is a mapping that JSON can hold: the options, the structure (sizes, positions) that the law drew, the dtype and the seed
of the numbers. The same case always gives the same tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from random import Random
from typing import Any

from .example import LawExample
from .part import PartUnderTest, Structure


@dataclass(frozen=True)
class Law:
    """`rule` says the law with its equation; `applies(subject, options)` whether it concerns the part; `draw` gives the
    structure of a case, or raises Inconclusive or Excluded if there is none; `evaluate` raises Violation, or returns the
    largest error as a share of its bound, or None where it is exact. `shrinks` gives the least value of each size that may be
    made smaller; a law that is no matter of rounding is evaluated in one dtype."""

    name: str
    rule: str
    applies: Callable[[PartUnderTest, Any], bool]
    draw: Callable[[PartUnderTest, Any, Random], Structure]
    evaluate: Callable[[LawExample], float | None]
    shrinks: Mapping[str, int] = field(default_factory=dict)
    dtypes: tuple[str, ...] = ()


def always(subject: PartUnderTest, options: Any) -> bool:
    """Applies to every part of the slot."""
    return True


def claims(name: str) -> Callable[[PartUnderTest, Any], bool]:
    """Applies to parts that claim a property."""

    def applies(subject: PartUnderTest, options: Any) -> bool:
        try:
            return name in subject.entry.claimed(options)
        except Exception:  # the law `declaration` reports why
            return False

    return applies


def known_as(*names: str) -> Callable[[PartUnderTest, Any], bool]:
    """Applies to parts with one of these equations."""
    return lambda subject, options: subject.mathematics in names
