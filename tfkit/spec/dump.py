"""The spec with all defaults filled in, as data and as text that loads back to an equal spec."""

from __future__ import annotations

import json
import re
from typing import Any

from pydantic import BaseModel

from ..slots.layer import Layer
from ..slots.options import Component, SlotListField, field_annotations
from .grammar import GROUP
from .model import ModelSpec
from .reader import FORBIDDEN

WIDTH = 120
_PLAIN = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*|https?://[A-Za-z0-9_./~%=&+-]*")
# Words that some version of YAML does not read as text.
_WORDS = frozenset({"null", "true", "false", "yes", "no", "on", "off", "y", "n"})


def resolved(spec: ModelSpec) -> dict[str, Any]:
    """The spec as plain data: mappings, lists and scalars, in the order of the language."""
    written = {key: getattr(spec, key) for key in ("tfkit", "name", "reference", "description") if getattr(spec, key) != ""}
    expect = spec.expect.model_dump(exclude_none=True)
    return {
        **written,
        **({"expect": expect} if expect else {}),
        "nodes": {name: {"kind": part.kind, **_fields(part.options)} for name, part in spec.nodes.items()},
        "outputs": list(spec.outputs),
    }


def _fields(options: BaseModel) -> dict[str, Any]:
    """An options model as data, without fields that are None by default. A group of layers keeps only the fields of a group."""
    dumped = options.model_dump()
    several = {name for name, _ in field_annotations(type(options), SlotListField)}
    fields: dict[str, Any] = {}
    for name, field in type(options).model_fields.items():
        value = getattr(options, name)
        if value is None and (field.is_required() or field.default is None):
            continue
        if isinstance(options, Layer) and options.layers is not None and name not in GROUP:
            continue
        if name in several:
            parts = [_value(part, None) for part in value]
            fields[name] = parts[0] if len(parts) == 1 else parts
        else:
            fields[name] = _value(value, dumped[name])
    return fields


def _value(value: Any, dumped: Any) -> Any:
    if isinstance(value, Component):
        options = _fields(value.options)
        return {"kind": value.kind, **options} if options else value.kind
    if isinstance(value, BaseModel):
        # A field with its own serialiser keeps its form.
        return _fields(value) if dumped == value.model_dump() else dumped
    if isinstance(value, (tuple, list)):
        return [_value(item, data) for item, data in zip(value, dumped, strict=True)]
    return sorted(dumped) if isinstance(dumped, (set, frozenset)) else dumped


def to_json(spec: ModelSpec) -> str:
    """The resolved spec as JSON. Characters that YAML does not allow are escaped."""
    text = json.dumps(resolved(spec), indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    return FORBIDDEN.sub(lambda letter: f"\\u{ord(letter[0]):04x}", text)


def to_yaml(spec: ModelSpec) -> str:
    """The resolved spec as YAML: a mapping on one line if it fits, each node on its own lines."""
    data = resolved(spec)
    lines = [line for key, value in data.items() if key != "nodes" for line in _entry(key, value, 0)]
    nodes = [line for key, value in data["nodes"].items() for line in _entry(key, value, 2)]
    last = lines.index(next(line for line in lines if line.startswith("outputs:")))
    return "\n".join([*lines[:last], "nodes:", *nodes, *lines[last:]]) + "\n"


def _entry(key: str, value: Any, indent: int) -> list[str]:
    """The lines of `key: value`."""
    line = f"{' ' * indent}{_scalar(key)}: {_flow(value)}"
    if len(line) <= WIDTH or not isinstance(value, (dict, list)) or not value:
        return [line]
    return [f"{' ' * indent}{_scalar(key)}:", *_block(value, indent + 2)]


def _block(value: Any, indent: int) -> list[str]:
    if isinstance(value, dict):
        return [line for key, item in value.items() for line in _entry(key, item, indent)]
    lines: list[str] = []
    for item in value:
        flow = f"{' ' * indent}- {_flow(item)}"
        if len(flow) <= WIDTH or not isinstance(item, (dict, list)) or not item:
            lines.append(flow)
        else:
            first, *rest = _block(item, indent + 2)
            lines += [f"{' ' * indent}- {first.lstrip(' ')}", *rest]
    return lines


def _flow(value: Any) -> str:
    if isinstance(value, dict):
        return "{" + ", ".join(f"{_scalar(key)}: {_flow(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list):
        return "[" + ", ".join(map(_flow, value)) + "]"
    return _scalar(value)


def _scalar(value: Any) -> str:
    """A scalar that every version of YAML reads as the same value."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        mantissa, e, exponent = repr(value).partition("e")
        return f"{mantissa if '.' in mantissa else mantissa + '.0'}{e}{exponent}" if e else mantissa
    if isinstance(value, int):
        return str(value)
    if _PLAIN.fullmatch(value) and value.lower() not in _WORDS:
        return str(value)
    return '"' + "".join(map(_escaped, value)) + '"'


def _escaped(letter: str) -> str:
    if letter in '"\\':
        return f"\\{letter}"
    if letter.isprintable():
        return letter
    return f"\\x{ord(letter):02x}" if ord(letter) < 256 else f"\\U{ord(letter):08x}"
