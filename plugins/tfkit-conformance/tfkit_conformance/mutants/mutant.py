"""A mutant: a correct backend with one error, by which the conformance suite is evaluated."""

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
    """A backend with one error. `summary` completes the sentence "looks like: ...". `fresh` makes the backend anew, since some
    mutants keep state between calls. `equivalent_when` names the calls on which the mutant gives the right answer, where the
    summary does not say so."""

    name: str
    family: str
    summary: str
    fresh: Callable[[], Attend]
    capabilities: Capabilities = CAPABILITIES
    equivalent_when: str = ""

    @property
    def attend(self) -> Attend:
        """The backend as it is before its first call."""
        return self.fresh()

    @property
    def entry(self) -> AttentionBackend:
        """Its declaration, as a plugin would register it."""
        return entry_of(self.name, f"wrong on purpose: {self.summary}", self.capabilities)


def of_family(family: str) -> Callable[..., Mutant]:
    """A constructor for the stateless mutants of one family."""

    def mutant(
        name: str, summary: str, attend: Attend, equivalent_when: str = "", capabilities: Capabilities = CAPABILITIES
    ) -> Mutant:
        return Mutant(name, family, summary, lambda: attend, capabilities, equivalent_when)

    return mutant
