"""The backends to verify: those that the spec allows at each site, or those that are requested by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from tfkit import Catalogue, Diagnostic, InputError, Model, SpecError
from tfkit.inspection import BoundBackend, bind

NO_ATTENTION = "no attention"
"""The backend of a model without attention."""


def by_site(model: Model, names: Sequence[str] | None, catalogue: Catalogue) -> dict[str, dict[str, BoundBackend]]:
    """The backends to evaluate at every site, by site and name. Raises SpecError for an unknown name."""
    if names is not None:
        named = {name: _named(name, catalogue) for name in names}
        return dict.fromkeys(model.sites, named)
    candidates_by_site = {}
    for attention, index, site in model.attention_sites():
        candidates_by_site[site] = {candidate.kind: candidate for candidate in attention.choices[index].candidates}
    return candidates_by_site


def requested_backends(model: Model, names: Sequence[str] | None) -> dict[str, Any]:
    """Every backend as it is requested for the whole model: itself, and eager where it refuses a call.

    A model without attention is verified once, under the name `no attention`.
    """
    if not model.sites:
        return {NO_ATTENTION: None}
    written: dict[str, Any] = {}
    if names is not None:
        if not names:
            raise InputError(Diagnostic("TFK078", "`backends` is empty", "name a backend, or leave it out: all are verified"))
        written = dict.fromkeys(names)
    else:
        for attention, index, _ in model.attention_sites():
            choice = attention.choices[index]
            requested = {part["kind"] if isinstance(part, dict) else part: part for part in choice.requested_backends}
            for candidate in choice.candidates:
                written.setdefault(candidate.kind, requested.get(candidate.kind))
    return {name: [requested or name] + (["eager"] if name != "eager" else []) for name, requested in written.items()}


def declaring(evaluated: dict[str, dict[str, BoundBackend]], dtype: str) -> set[str]:
    """The backends, of those that are evaluated by site, that declare a dtype."""
    return {
        name for backends in evaluated.values() for name, bound in backends.items() if dtype in bound.entry.capabilities.dtypes
    }


def _named(name: str, catalogue: Catalogue) -> BoundBackend:
    entry = catalogue.find("backend", name)
    if entry is None or name == "auto":
        fix = catalogue.why_missing("backend", name) if entry is None else "name the backends to be evaluated"
        raise SpecError(Diagnostic("TFK012", f"there is no attention backend `{name}`", fix))
    try:
        options = entry.options()
    except ValidationError:
        raise SpecError(
            Diagnostic("TFK012", f"`{name}` needs options", "write it in the spec, as a mapping with its options")
        ) from None
    return bind(entry, options)
