"""The declaration of a part as data: every field of its entry that the suite uses, not its summary, links or timings."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Set
from dataclasses import fields
from typing import Any

from pydantic import BaseModel
from pydantic_core import PydanticUndefined

LEFT_OUT = frozenset({"summary", "reference", "auto", "source"})
"""Fields of an entry that change nothing of what it does."""


def declaration_of(entry: Any) -> dict[str, Any]:
    """The declaration of an entry as JSON data."""
    return {field.name: _plain(getattr(entry, field.name)) for field in fields(entry) if field.name not in LEFT_OUT}


def modules_of(entry: Any) -> list[str]:
    """The modules that the code of an entry is in, its functions included. Those of tfkit's contract are left out. So is that
    of its options, whose names and defaults are part of the declaration."""
    found = set()
    for field in fields(entry):
        value = getattr(entry, field.name)
        if field.name in LEFT_OUT:
            continue
        if isinstance(value, str) and ":" in value:
            found.add(value.partition(":")[0])
        elif callable(value) and field.name != "options":
            found.add(str(value.__module__))
    return sorted(name for name in found if name.split(".")[0] != "tfkit" or name.startswith(("tfkit.builtin.", "tfkit.cpu.")))


def digest(data: Any) -> str:
    """The SHA-256 of JSON data."""
    return hashlib.sha256(json.dumps(data, sort_keys=True, separators=(",", ":"), allow_nan=False).encode()).hexdigest()


def flattened(data: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """The values of nested mappings with their paths: `capabilities.mask_terms`."""
    if isinstance(data, Mapping) and data:
        for key, value in data.items():
            yield from flattened(value, f"{path}.{key}" if path else str(key))
    else:
        yield path, data


def _plain(value: Any) -> Any:
    if value is None or isinstance(value, (str, bool, int)):
        return value
    if isinstance(value, float):
        return value if value - value == 0 else str(value)
    if isinstance(value, BaseModel):
        return {name: _plain(getattr(value, name)) for name in type(value).model_fields}
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, Set):
        return sorted(map(_plain, value), key=str)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    if isinstance(value, type) and issubclass(value, BaseModel):
        return {name: _default(field) for name, field in value.model_fields.items()}
    name = getattr(value, "__qualname__", None) or type(value).__qualname__
    return f"{getattr(value, '__module__', '')}:{name}"


def _default(field: Any) -> Any:
    value = field.get_default(call_default_factory=False)
    return "required" if field.is_required() else None if value is PydanticUndefined else _plain(value)
