"""Every part of a model that needs source code."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from ...errors import Diagnostic
from ...slots.options import Component, SlotField, field_annotations
from ...spec import ModelSpec

UNWRITTEN = {"backend", "init"}
"""Slots that the code does not show: how attention is computed, and how weights are drawn."""


def missing_sources(spec: ModelSpec) -> list[Diagnostic]:
    """The parts without a template, each located in the spec, each once."""
    found: dict[tuple[str, str], Diagnostic] = {}
    for name, node in spec.nodes.items():
        for path, slot, part in (("", "node", node), *parts_in(node.options, "")):
            if not part.entry.source and not _does_nothing(slot, part):
                message = f"the {slot} `{part.kind}` has no source code to write"
                fix = "choose another part, or give its entry a `source`"
                found.setdefault((slot, part.kind), spec.diagnostic("TFK150", f"nodes.{name}{path}", message, fix))
    return list(found.values())


def parts_in(value: Any, path: str) -> Iterator[tuple[str, str, Component]]:
    """The parts that options name, with path and slot."""
    if isinstance(value, tuple):
        for number, item in enumerate(value):
            yield from parts_in(item, f"{path}.{number}")
    elif isinstance(value, Component):
        slot = "sublayer"
        yield path, slot, value
        yield from parts_in(value.options, path)
    elif isinstance(value, BaseModel):
        slots = {name: annotation.slot for name, annotation in field_annotations(type(value), SlotField)}
        for name in type(value).model_fields:
            item = getattr(value, name)
            if name in slots and slots[name] not in UNWRITTEN and isinstance(item, Component):
                yield f"{path}.{name}", slots[name], item
                yield from parts_in(item.options, f"{path}.{name}")
            elif name not in slots and name not in UNWRITTEN:
                yield from parts_in(item, f"{path}.{name}")


def _does_nothing(slot: str, part: Component) -> bool:
    """Whether nothing is written for it: `none`, a dot product."""
    if slot == "position":
        return not part.entry.acts
    if slot == "score":
        return part.entry.build is None
    return slot == "norm" and part.kind == "none"
