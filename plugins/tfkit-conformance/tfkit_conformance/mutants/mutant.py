"""A mutant: a backend that is wrong on purpose, in one way, so that a suite can be evaluated by whether it notices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tfkit.plugin import AttentionBackend, AttentionInputs, AttentionOutput, Capabilities

from .kernel import entry_of
from .kernel.kernel import CAPABILITIES

Attend = Callable[[AttentionInputs, Any], AttentionOutput]


@dataclass(frozen=True)
class Mutant:
    """One mutant. `summary` finishes the sentence "looks like: ...". `fresh` makes the mutant, which may remember its
    earlier calls; `equivalent_when` says on which calls it does nothing wrong, where the summary does not; `killed_by` names
    the checks that are expected to see it, where only some can."""

    name: str
    family: str
    summary: str
    fresh: Callable[[], Attend]
    capabilities: Capabilities = CAPABILITIES
    equivalent_when: str = ""
    killed_by: frozenset[str] = frozenset()

    @property
    def attend(self) -> Attend:
        """The mutant, as it is before its first call."""
        return self.fresh()

    @property
    def entry(self) -> AttentionBackend:
        """Its declaration, as a plugin would offer it."""
        return entry_of(self.name, f"wrong on purpose: {self.summary}", self.capabilities)


def of_family(family: str) -> Callable[..., Mutant]:
    """Writes the mutants of one family, most of which remember nothing."""

    def mutant(
        name: str, summary: str, attend: Attend, equivalent_when: str = "", capabilities: Capabilities = CAPABILITIES
    ) -> Mutant:
        return Mutant(name, family, summary, lambda: attend, capabilities, equivalent_when)

    return mutant
