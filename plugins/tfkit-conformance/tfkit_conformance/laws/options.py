"""The options that a part is checked with: the given ones, or the defaults and variants that differ in one option."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from tfkit import Catalogue, Diagnostic, SpecError
from tfkit.inspection import Entry
from tfkit.plugin import OneOf

LENGTHS = (11, 24)
"""Values of `max_len`, where it may be left unwritten: small, so that its end is met."""


def entry_of(catalogue: Catalogue, slot: str, name_or_entry: Any) -> Any:
    """The entry itself, or the entry of this name. Raises SpecError if there is none."""
    if isinstance(name_or_entry, Entry):
        return name_or_entry
    entry = catalogue.find(slot, str(name_or_entry))
    if entry is None:
        fix = catalogue.why_missing(slot, str(name_or_entry))
        raise SpecError(Diagnostic("TFK012", f"`{name_or_entry}` names no {slot}", fix))
    return entry


def parsed(catalogue: Catalogue, slot: str, entry: Any, written: Any) -> Any:
    """Options from a mapping. Raises SpecError with the first thing that is wrong."""
    if isinstance(written, entry.options):
        return written
    try:
        return entry.options.model_validate(written, context={"catalogue": catalogue})
    except ValidationError as reason:
        first = reason.errors(include_url=False)[0]
        place = ".".join(map(str, first["loc"]))
        raise SpecError(Diagnostic("TFK021", f"options of {slot} `{entry.name}`: {place}: {first['msg']}")) from None


def variants(catalogue: Catalogue, entry: Any) -> list[Any]:
    """The default options, and each that differs from them in one option that is a flag or one of some names (or `max_len`)."""
    written: list[dict[str, Any]] = [{}]
    for name, field in entry.options.model_fields.items():
        values: list[Any] = [
            value for annotation in field.metadata if isinstance(annotation, OneOf) for value in annotation.names
        ]
        if field.annotation is bool:
            values = [False, True]
        if name == "max_len":
            values = list(LENGTHS)
        written += [{name: value} for value in values]
    distinct: list[Any] = []
    for settings in written:
        try:
            options = entry.options.model_validate(settings, context={"catalogue": catalogue})
        except ValidationError:
            continue
        if options not in distinct:
            distinct.append(options)
    if not distinct:
        needed = ", ".join(f"`{name}`" for name, field in entry.options.model_fields.items() if field.is_required())
        raise SpecError(Diagnostic("TFK030", f"`{entry.name}` cannot be evaluated without options: {needed}", "write them"))
    return distinct


def shared(example: Any) -> Any:
    """The options as the built-in of the same mathematics has them."""
    entry, subject = example.entry, example.subject
    if not entry.same_as:
        return example.options
    known = subject.catalogue.find(subject.slot, entry.same_as)
    if known is None:
        raise example.broken(f"`same_as` names `{entry.same_as}`, which is no {subject.slot} of the catalogue")
    try:
        return known.options.model_validate(
            example.options.model_dump(exclude_none=True), context={"catalogue": subject.catalogue}
        )
    except ValidationError as reason:
        raise example.broken(f"its options are not those of `{entry.same_as}`, which `same_as` promises: {reason}") from None
