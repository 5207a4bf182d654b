"""The part of a slot that laws are checked on."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tfkit import Catalogue, Diagnostic, InputError
from tfkit.plugin.model_parts import FeedForward, load

Structure = dict[str, Any]
"""What a law draws for a case: sizes, positions, choices; JSON can hold it."""


class Excluded(Exception):
    """The declaration of the part leaves no case for this law: a table of one position has no order."""


@dataclass(frozen=True)
class PartUnderTest:
    """The part under test. `make` is the function that its entry names as `build` or `function`; `block` is the feed-forward
    layer around an activation. Mutants replace them."""

    slot: str
    entry: Any
    make: Callable[..., Any]
    catalogue: Catalogue
    distribution: str = ""
    block: Callable[..., Any] = FeedForward

    @property
    def mathematics(self) -> str:
        """The name under which the equation of this part is known."""
        return str(self.entry.same_as or self.entry.name)


def part_under_test(catalogue: Catalogue, slot: str, entry: Any) -> PartUnderTest:
    """The part as its plugin registers it. Raises PluginError where its code cannot be imported, and InputError where it has
    none: the score `dot` is part of the attention contract."""
    offer = catalogue.registered[slot].get(entry.name)
    if slot == "score" and entry.build is None:
        message = f"the score `{entry.name}` is the dot product of the attention contract and has no code of its own"
        raise InputError(Diagnostic("TFK094", message, "attention backends are checked with it: tfkit conformance BACKEND"))
    reference = entry.function if slot == "activation" else entry.build
    return PartUnderTest(slot, entry, load(reference), catalogue, offer.distribution if offer else "")
