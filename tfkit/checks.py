"""The checks that reports of `tfkit conformance` and `tfkit verify` name: what each is about, what it demands, what voids it.

The texts stand beside the code of the checks, in `tfkit.testing`, which imports torch. `checks.json` is their copy, so that
`tfkit explain` needs neither; `python -m tfkit.testing.checks` writes it.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path

FILE = Path(__file__).with_name("checks.json")


@dataclass(frozen=True)
class Check:
    """`name` as reports have it; `judges` what it is asked of; `rule` the rule of the contract, or the number of the relation,
    that it shows; `void` the features that leave it nothing to say."""

    name: str
    judges: str
    rule: str
    summary: str
    demand: str = ""
    void: tuple[str, ...] = ()


def all_checks() -> list[Check]:
    """The checks of `tfkit conformance`, slot by slot, then those of `tfkit verify`."""
    return [Check(**{**each, "void": tuple(each["void"])}) for each in json.loads(FILE.read_text(encoding="utf-8"))]


def checks_named(words: str) -> list[Check]:
    """The checks with this name, number (`R19`) or rule (`A5`), in any case."""
    wanted = words.casefold()
    return [check for check in all_checks() if wanted in _calls(check)]


def _calls(check: Check) -> set[str]:
    first, _, rest = check.name.partition(" ")
    numbered = {first, rest} if first[:1] in "AR" and first[1:].isdigit() else set()
    return {word.casefold() for word in {check.name, check.rule, *numbered} if word}
