"""A mutant of a part: a built-in part with one error, as a careless author could write it. The laws must find each of them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

from torch import nn

from tfkit_conformance.laws.law import PartUnderTest

Change = Callable[[PartUnderTest], PartUnderTest]
Row = tuple[str, str, Change] | tuple[str, str, Change, Mapping[str, Any]]
"""Name, summary, change, and the options if the default options and their neighbours do not show the error."""


@dataclass(frozen=True)
class LawMutant:
    """A built-in part `base` of a slot with an error. `change` puts the error in; `summary` describes it.

    The part is checked with `options`, or with its default options and those that differ in one option."""

    name: str
    slot: str
    base: str
    summary: str
    change: Change
    options: Mapping[str, Any] = field(default_factory=dict)


def law_mutants(slot: str, **rows: Iterable[Row]) -> tuple[LawMutant, ...]:
    """The mutants of a slot: rows by the built-in part that they change."""
    return tuple(LawMutant(name, slot, base, *rest) for base, table in rows.items() for name, *rest in table)  # type: ignore[arg-type]


def patched(patch: Callable[..., None]) -> Change:
    """Builds the part's module, then calls `patch(module, options, *where)`."""

    def change(subject: PartUnderTest) -> PartUnderTest:
        def make(options: Any, *where: Any) -> nn.Module:
            module: nn.Module = subject.make(options, *where)
            patch(module, options, *where)
            return module

        return replace(subject, make=make)

    return change


def made(make: Callable[..., Any]) -> Change:
    """Puts other code behind the same entry."""
    return lambda subject: replace(subject, make=make)


def declares(**fields: Any) -> Change:
    """Leaves the code as it is and changes fields of the entry."""
    return lambda subject: replace(subject, entry=replace(subject.entry, **fields))


@dataclass(frozen=True)
class Built:
    """A module of a part as it was built, and its method `own`."""

    module: Any
    options: Any
    site: Any
    own: Callable[..., Any]


def overriding(name: str, method: Callable[..., Any]) -> Change:
    """Replaces one method of the module by `method(built, *arguments)`."""

    def patch(module: nn.Module, options: Any, site: Any) -> None:
        object.__setattr__(module, name, partial(method, Built(module, options, site, getattr(module, name))))

    return patched(patch)
