"""Which weights a run copied from the model that it started from, as text and as data."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from ..train import LoadReport
from ..train.pretrained import SkippedTensor, shape_text
from .formatting import ranges
from .terminal import shown

FEW = 2
"""Up to this number the tensors of a part are listed; more are listed as one part."""


def load_report_text(taken: LoadReport) -> str:
    """How many weights were copied, and one line per reason for those that were not."""
    rows = [f"pretrained: {taken.loaded:,} of {taken.total:,} weights are those of {taken.place}"]
    reasons: dict[tuple[str, str], list[SkippedTensor]] = {}
    for each in sorted(taken.skipped, key=lambda left: not left.initialised):
        reasons.setdefault(("drawn anew" if each.initialised else "not used", each.reason), []).append(each)
    for (what, why), left in reasons.items():
        skipped = {each.name for each in left}
        side = [*taken.names, *(each.name for each in taken.skipped if each.initialised == left[0].initialised)]
        rows.append(f"  {what}, {why}: {', '.join(_folded(_items(left, [name for name in side if name not in skipped])))}")
    return "\n".join(map(shown, rows))


def _items(left: list[SkippedTensor], others: Iterable[str]) -> list[tuple[str, str]]:
    """Names and sizes of tensors, or of parts whose tensors are all in the list."""
    kept = {prefix for name in others for prefix in _prefixes(name)}
    parts: dict[str, list[SkippedTensor]] = {}
    for each in left:
        whole = next(prefix for prefix in _prefixes(each.name) if prefix not in kept)
        parts.setdefault(whole if each.pretrained_shape is None else each.name, []).append(each)
    found: list[tuple[str, str]] = []
    for part, tensors in parts.items():
        if len(tensors) <= FEW:
            found += [(each.name, _sizes(each)) for each in tensors]
        else:
            found.append((part, f"({len(tensors)} tensors, {sum(math.prod(each.shape) for each in tensors):,} weights)"))
    return [(name.removeprefix("nodes."), size) for name, size in found]


def _sizes(left: SkippedTensor) -> str:
    there = left.pretrained_shape
    return shape_text(left.shape) + ("" if there is None else f" here, {shape_text(there)} there")


def _prefixes(name: str) -> list[str]:
    """`nodes.out`, `nodes.out.linear`, `nodes.out.linear.weight`."""
    steps = name.split(".")
    return [".".join(steps[:count]) for count in range(min(2, len(steps)), len(steps) + 1)]


def _folded(items: list[tuple[str, str]]) -> list[str]:
    """Equal layers of a stack as one: `encoder.layers.0-5.norms.ffn.weight (512)`."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for name, size in items:
        found = re.fullmatch(r"(.*?\.)(\d+)((?:\..*)?)", name)
        key = (found[1], found[3], size) if found else (name, "", size)
        groups.setdefault(key, []).extend([int(found[2])] if found else [])
    return [
        f"{before}{ranges(numbers)}{after} {size}{' each' if len(numbers) > 1 else ''}"
        for (before, after, size), numbers in groups.items()
    ]


def load_report_data(taken: LoadReport) -> dict[str, Any]:
    """The report as JSON; `left` holds the fields of every `SkippedTensor`."""
    left = [asdict(each) for each in taken.skipped]
    return {"model": str(taken.place), "taken": taken.loaded, "weights": taken.total, "left": left}
