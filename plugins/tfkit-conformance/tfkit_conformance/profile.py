"""How much a run does. It goes in rounds over the whole suite, so that most of what is wrong is found early; a larger profile
begins with the rounds of a smaller one."""

from __future__ import annotations

from dataclasses import dataclass

from tfkit import Diagnostic, InputError


@dataclass(frozen=True)
class Round:
    """`cell` examples in every cell of the declaration and `relation` examples of every relation, for each dtype."""

    cell: int
    relation: int


@dataclass(frozen=True)
class Profile:
    """The rounds of a run."""

    name: str
    rounds: tuple[Round, ...]


FIRST, SECOND, THIRD = Round(2, 3), Round(6, 9), Round(52, 88)
PROFILES = {
    profile.name: profile
    for profile in (
        Profile("quick", (FIRST,)),
        Profile("standard", (FIRST, SECOND)),
        Profile("deep", (FIRST, SECOND, THIRD)),
    )
}


def profile_of(name: str) -> Profile:
    """The profile of that name. Raises InputError."""
    if name not in PROFILES:
        raise InputError(Diagnostic("TFK094", f"there is no profile `{name}`", f"profiles: {', '.join(PROFILES)}"))
    return PROFILES[name]
