"""A seeded fault: a backend that is wrong on purpose, in one way, so that a suite can be judged by whether it notices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tfkit.attention.backend import AttentionBackend
from tfkit.attention.capabilities import Capabilities
from tfkit.attention.types import AttentionInputs, AttentionOutput

from .kernel import entry_of
from .kernel.kernel import CAPABILITIES

Attend = Callable[[AttentionInputs, Any], AttentionOutput]


@dataclass(frozen=True)
class Mutant:
    """One fault. `summary` finishes the sentence "looks like: ...". `fresh` makes the faulty backend, which may remember its
    earlier calls; `equivalent_when` says on which calls it does nothing wrong, where the summary does not; `seen_by` names the
    checks that are expected to see it, where only some can."""

    name: str
    family: str
    summary: str
    fresh: Callable[[], Attend]
    capabilities: Capabilities = CAPABILITIES
    equivalent_when: str = ""
    seen_by: frozenset[str] = frozenset()

    @property
    def attend(self) -> Attend:
        """The faulty backend, as it is before its first call."""
        return self.fresh()

    @property
    def entry(self) -> AttentionBackend:
        """Its declaration, as a plugin would offer it."""
        return entry_of(self.name, f"wrong on purpose: {self.summary}", self.capabilities)


def of_family(family: str) -> Callable[..., Mutant]:
    """Writes the faults of one family, most of which remember nothing."""

    def mutant(
        name: str, summary: str, attend: Attend, equivalent_when: str = "", capabilities: Capabilities = CAPABILITIES
    ) -> Mutant:
        return Mutant(name, family, summary, lambda: attend, capabilities, equivalent_when)

    return mutant
