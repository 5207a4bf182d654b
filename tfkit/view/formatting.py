"""Counts, rates, seconds and bytes with three digits and a unit; shares, ranges, options and the choice of products as text."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel

from ..slots.options import Component, LayersField, NodeRef, field_annotations
from ..spec.located import short
from .terminal import shown


def seconds_in_words(seconds: float) -> str:
    """A duration as text.

    Returns:
        `12.3 us`, `4.56 ms` or `7.89 s`.
    """
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{_digits(seconds / size)} {unit}"
    return f"{_digits(seconds / 1e-6)} us"


STEPS = ("", "k", "M", "G", "T", "P", "E")


def scaled(number: float, unit: str) -> str:
    """A number with three digits and a decimal prefix.

    Returns:
        `3.21 GFLOPs`, `25.4 GB/s`.
    """
    value, step = float(number), 0
    while value >= 999.5 and step < len(STEPS) - 1:
        value, step = value / 1000, step + 1
    return f"{value:.3g} {STEPS[step]}{unit}" if value < 1000 else f"{value:,.0f} {STEPS[step]}{unit}"


def bytes_in_words(size: float) -> str:
    """A size as text.

    Returns:
        `512 B`, `36 MiB`.
    """
    for unit, power in (("GiB", 30), ("MiB", 20), ("KiB", 10)):
        if size >= 1 << power:
            return f"{_digits(size / (1 << power))} {unit}"
    return f"{size:.0f} B"


def _digits(number: float) -> str:
    return f"{number:.0f}" if number >= 100 else f"{number:.3g}"


NOTHING = "-"
"""Where a model has no such field, tensor or node."""


def percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:.1f}%" if whole else ""


def ranges(numbers: list[int]) -> str:
    """A list of numbers as short text.

    Args:
        numbers: the numbers, ascending.

    Returns:
        `0-5`, `0-3,5` or `0,2,..,40`.
    """
    if len(numbers) > 3 and (step := numbers[1] - numbers[0]) > 1 and numbers == list(range(numbers[0], numbers[-1] + 1, step)):
        return f"{numbers[0]},{numbers[1]},..,{numbers[-1]}"
    runs: list[list[int]] = []
    for number in numbers:
        if runs and runs[-1][-1] + 1 == number:
            runs[-1] = [runs[-1][0], number]
        else:
            runs.append([number, number])
    return ",".join(f"{low}" if low == high else f"{low}-{high}" for low, high in runs)


def changed_options(options: BaseModel, skip: frozenset[str] = frozenset()) -> str:
    """The options that differ from their defaults, without edges and layers."""
    hidden = skip | {name for kind in (NodeRef, LayersField) for name, _ in field_annotations(type(options), kind)}
    dumped = options.model_dump()
    changed = []
    for name, field in type(options).model_fields.items():
        value = getattr(options, name)
        if name in hidden or (not field.is_required() and _same(value, field.default)):
            continue
        changed.append(f"{name} {in_words(value, dumped[name])}")
    return ", ".join(changed)


def _same(value: Any, default: Any) -> bool:
    """Whether a value is the default of its field. The default of a slot is the name of a part."""
    parts = value if isinstance(value, tuple) else (value,)
    if isinstance(default, str) and len(parts) == 1 and isinstance(parts[0], Component):
        return parts[0].kind == default and not changed_options(parts[0].options)
    return bool(value == default)


def in_words(value: Any, dumped: Any = None) -> str:
    """A value as text."""
    if isinstance(value, Component):
        more = changed_options(value.options)
        return f"{value.kind} ({more})" if more else value.kind
    if isinstance(value, tuple) and value and isinstance(dumped, tuple | list):
        items = list(map(in_words, value, dumped))
        if isinstance(value[0], Component):
            return " or ".join(items)
        joined = ", ".join(items)
        return joined if isinstance(value[0], BaseModel) else f"({joined})"
    if isinstance(value, bool) or dumped is True or dumped is False:
        return "true" if dumped else "false"
    if isinstance(value, BaseModel) and isinstance(dumped, dict) and dumped.keys() == type(value).model_fields.keys():
        return f"({changed_options(value)})"
    if isinstance(dumped, dict):
        return " ".join(f"{name}: {in_words(item, item)}" for name, item in dumped.items())
    return short(f"{value:g}" if isinstance(value, float) else str(dumped))


def resolved_words(value: Any) -> str:
    """A value of a resolved spec: `rms_norm (eps 1e-06, affine true)`."""
    if value is None:
        return NOTHING
    if isinstance(value, dict):
        more = ", ".join(f"{name} {resolved_words(item)}" for name, item in value.items() if name != "kind")
        return f"{value['kind']}{f' ({more})' if more else ''}" if "kind" in value else f"({more})"
    if isinstance(value, list):
        return ", ".join(map(resolved_words, value)) or "none"
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return str(value).lower() if isinstance(value, bool) else str(value)


def float32_products(products: Mapping[str, Any]) -> str:
    """How the products of decoding are chosen: a phrase, from what `tfkit.cpu.small_batch.products_here` returns."""
    rule = f"the built-in rule for {products['rule']}"
    if products["kernel"] is not None:
        rule = shown(products["kernel"])
    if products["table"] is None:
        return f"by {rule}"
    threads = ", ".join(map(str, products["threads"]))
    return f"by {shown(products['table'])} ({products['weights']} weights; threads {threads}), elsewhere by {rule}"
