"""The values that the fields of an options model accept, read from the model: unknown parts can be tried too.

    choices    OneOf names, Literal, bool            whole, real    numbers between the bounds of their Field
    part       a SlotField: an entry of a slot       model          an options model inside the options
A field that is none of these has no domain: it keeps its default, and a part that requires it cannot be tried.
"""

from __future__ import annotations

import math
import types
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from pydantic.fields import FieldInfo

from tfkit.inspection import Entry
from tfkit.plugin import OneOf, Options, SlotField
from tfkit.plugin.model_parts import NodeRef

SPAN = 24
"""Whole numbers are tried up to this much above their lower bound: sizes start at 1, and small models are wanted."""
EXPONENTS = range(-6, 3)
"""Real numbers are tried at 2^k beyond their lower bound (0 where there is none)."""


@dataclass(frozen=True)
class Domain:
    """The values of one field. `choices` are alternatives to `kind`; `optional` says that None is one of them."""

    kind: Literal["choices", "whole", "real", "part", "model"]
    choices: tuple[Any, ...] = ()
    low: float = -math.inf
    high: float = math.inf
    slot: str = ""
    model: type[BaseModel] | None = None
    optional: bool = False

    def numbers(self) -> tuple[float, ...]:
        """The numbers to try, ascending: near the lower bound and within both."""
        if self.kind == "whole":
            first = 0 if self.low == -math.inf else math.ceil(self.low)
            last = first + SPAN if self.high == math.inf else min(first + SPAN, math.floor(self.high))
            return tuple(range(first, last + 1))
        if self.kind == "real":
            start = 0.0 if self.low == -math.inf else self.low
            return tuple(start + 2.0**k for k in EXPONENTS if start + 2.0**k < self.high)
        return ()


def domains(options: type[BaseModel]) -> dict[str, Domain]:
    """The domain of every field that has one."""
    found = {name: _domain(field.annotation, tuple(field.metadata)) for name, field in options.model_fields.items()}
    return {name: domain for name, domain in found.items() if domain is not None}


def tryable(entry: Entry) -> bool:
    """Whether every option that must be written is one that can be."""
    known = domains(entry.options)
    return all(name in known for name, field in entry.options.model_fields.items() if field.is_required())


def attempts(entry: Entry, context: dict[str, Any]) -> Iterator[Options]:
    """Options to try in turn, plainest first: what must be written and no more; then one further field at a time."""
    known = domains(entry.options)
    required = {
        name: _middle(known[name])
        for name, field in entry.options.model_fields.items()
        if field.is_required() and name in known
    }
    further: list[dict[str, Any]] = [{}]
    for name, domain in known.items():
        if name not in required and domain.kind in ("choices", "whole", "real"):
            further += [{name: value} for value in (*domain.choices, *domain.numbers()[::-8])]
    for extra in further:
        try:
            yield entry.options.model_validate({**required, **extra}, context=context)
        except ValidationError:
            continue


def _middle(domain: Domain) -> Any:
    values = domain.choices or domain.numbers()
    return values[len(values) // 2] if values else None


def _domain(annotation: Any, metadata: tuple[Any, ...]) -> Domain | None:
    for item in metadata:
        if isinstance(item, OneOf):
            names = (*item.names, *((True, False) if item.flag else ()))
            return Domain("real" if item.number else "choices", names)
        if isinstance(item, SlotField):
            return Domain("part", slot=item.slot)
        if isinstance(item, NodeRef):
            return None
    if get_origin(annotation) is Annotated:
        inner, *more = get_args(annotation)
        return _domain(inner, (*_flat(more), *metadata))
    if get_origin(annotation) in (Union, types.UnionType):
        members = [member for member in get_args(annotation) if member is not type(None)]
        domain = _domain(members[0], metadata) if len(members) == 1 else None
        return None if domain is None else replace(domain, optional=True)
    if get_origin(annotation) is Literal:
        return Domain("choices", get_args(annotation))
    if annotation is bool:
        return Domain("choices", (False, True))
    if annotation in (int, float):
        return _numbers(annotation, metadata)
    if isinstance(annotation, type) and issubclass(annotation, BaseModel) and not metadata:
        return Domain("model", model=annotation)
    return None


def _numbers(annotation: type, metadata: tuple[Any, ...]) -> Domain:
    lows, highs = [-math.inf], [math.inf]
    step = 1 if annotation is int else 0
    for item in _flat(metadata):
        for kind, ends, inward in (("ge", lows, 0), ("gt", lows, step), ("le", highs, 0), ("lt", highs, -step)):
            end = getattr(item, kind, None)
            if end is not None:
                ends.append(end + inward)
    low, high = max(lows), min(highs)
    return Domain("whole" if annotation is int else "real", low=low, high=high)


def _flat(metadata: Any) -> tuple[Any, ...]:
    """Marks, with those that a nested Field holds laid open."""
    found: list[Any] = []
    for item in metadata:
        found += item.metadata if isinstance(item, FieldInfo) else [item]
    return tuple(found)
