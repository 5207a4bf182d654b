"""A mutant: a known part with one thing wrong, as a careless author would leave it. The laws are evaluated by these."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from torch import nn

from tfkit_conformance.laws.part import PartUnderTest

Change = Callable[[PartUnderTest], PartUnderTest]


@dataclass(frozen=True)
class LawMutant:
    """`summary` says in words what is wrong with `base`, a built-in of `slot`, evaluated with `options` (else with its default
    ones and those next to them); `change` makes it so."""

    name: str
    slot: str
    base: str
    summary: str
    change: Change
    options: Mapping[str, Any] = field(default_factory=dict)


def patched(patch: Callable[..., None]) -> Change:
    """The module is built and then spoilt by `patch(module, options, *where)`."""

    def change(subject: PartUnderTest) -> PartUnderTest:
        def make(options: Any, *where: Any) -> nn.Module:
            module: nn.Module = subject.make(options, *where)
            patch(module, options, *where)
            return module

        return replace(subject, make=make)

    return change


def made(make: Callable[..., Any]) -> Change:
    """Other code stands behind the same entry."""
    return lambda subject: replace(subject, make=make)


def declares(**fields: Any) -> Change:
    """The code is right, the entry says something else."""
    return lambda subject: replace(subject, entry=replace(subject.entry, **fields))


def method(module: nn.Module, name: str, function: Callable[..., Any]) -> None:
    """Replace a method of one module."""
    object.__setattr__(module, name, function)
