"""The texts of all checks in reports: the part that each evaluates, its condition, and the features that void it.

A distribution that ships checks names a JSON file in the entry-point group `tfkit.checks`, so that `tfkit explain` imports
neither the checks nor torch.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from importlib.metadata import entry_points


@dataclass(frozen=True)
class Check:
    """One check: its name in reports, the kind of part that it evaluates, the rule of the contract (or the number of the
    relation), one line about it, the condition that must hold, and the features without which there is nothing to evaluate."""

    name: str
    evaluates: str
    rule: str
    summary: str
    demand: str = ""
    void: tuple[str, ...] = ()


def all_checks() -> list[Check]:
    """The checks of all installed distributions. tfkit-conformance lists them slot by slot, then those of `tfkit verify`."""
    files = [point.load() for point in entry_points(group="tfkit.checks")]
    read = [check for file in files for check in json.loads(file.read_text(encoding="utf-8"))]
    return [Check(**{**check, "void": tuple(check["void"])}) for check in read]


def checks_named(words: str) -> list[Check]:
    """The checks with this name, number (`R19`) or rule (`A5`), in any case."""
    wanted = words.casefold()
    return [check for check in all_checks() if wanted in _names(check)]


def _names(check: Check) -> set[str]:
    """The names by which `tfkit explain` finds a check."""
    first, _, rest = check.name.partition(" ")
    numbered = {first, rest} if first[:1] in "AR" and first[1:].isdigit() else set()
    return {word.casefold() for word in {check.name, check.rule, *numbered} if word}
