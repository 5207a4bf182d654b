"""The report on pretrained weights, as text and as data: which tensors were loaded, and why others were not."""

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

MOST_LISTED = 2
"""Up to this number of skipped tensors, a part is listed tensor by tensor."""


def load_report_text(report: LoadReport) -> str:
    """The number of loaded weights, and one line per reason for those that were skipped."""
    rows = [f"pretrained: {report.loaded:,} of {report.total:,} weights are loaded from {report.place}"]
    for name, old, new in report.extended:
        means = f"{new:,} new ones are means of the old pieces that spell them"
        rows.append(f"  extended: {name.removeprefix('nodes.')}: {old:,} rows are loaded, {means}")
    reasons: dict[tuple[str, str], list[SkippedTensor]] = {}
    for skipped_tensor in sorted(report.skipped, key=lambda tensor: not tensor.initialised):
        reasons.setdefault(("initialised" if skipped_tensor.initialised else "not used", skipped_tensor.reason), []).append(
            skipped_tensor
        )
    for (what, why), tensors in reasons.items():
        skipped = {tensor.name for tensor in tensors}
        same_model = [
            *report.names,
            *(tensor.name for tensor in report.skipped if tensor.initialised == tensors[0].initialised),
        ]
        items = _items(tensors, [name for name in same_model if name not in skipped])
        rows.append(f"  {what}, {why}: {', '.join(_folded(items))}")
    return "\n".join(map(shown, rows))


def _items(skipped: list[SkippedTensor], others: Iterable[str]) -> list[tuple[str, str]]:
    """Names and sizes of tensors, or of parts whose tensors are all in the list."""
    kept = {prefix for name in others for prefix in _prefixes(name)}
    parts: dict[str, list[SkippedTensor]] = {}
    for skipped_tensor in skipped:
        whole = next(prefix for prefix in _prefixes(skipped_tensor.name) if prefix not in kept)
        parts.setdefault(whole if skipped_tensor.pretrained_shape is None else skipped_tensor.name, []).append(skipped_tensor)
    items: list[tuple[str, str]] = []
    for part, tensors in parts.items():
        if len(tensors) <= MOST_LISTED:
            items += [(tensor.name, _sizes(tensor)) for tensor in tensors]
        else:
            items.append((part, f"({len(tensors)} tensors, {sum(math.prod(tensor.shape) for tensor in tensors):,} weights)"))
    return [(name.removeprefix("nodes."), size) for name, size in items]


def _sizes(tensor: SkippedTensor) -> str:
    pretrained = tensor.pretrained_shape
    return shape_text(tensor.shape) + ("" if pretrained is None else f", pretrained {shape_text(pretrained)}")


def _prefixes(name: str) -> list[str]:
    """`nodes.out`, `nodes.out.linear`, `nodes.out.linear.weight`."""
    steps = name.split(".")
    return [".".join(steps[:count]) for count in range(min(2, len(steps)), len(steps) + 1)]


def _folded(items: list[tuple[str, str]]) -> list[str]:
    """Equal layers of a stack as one: `encoder.layers.0-5.norms.ffn.weight (512)`."""
    groups: dict[tuple[str, str, str], list[int]] = {}
    for name, size in items:
        match = re.fullmatch(r"(.*?\.)(\d+)((?:\..*)?)", name)
        key = (match[1], match[3], size) if match else (name, "", size)
        groups.setdefault(key, []).extend([int(match[2])] if match else [])
    return [
        f"{before}{ranges(numbers)}{after} {size}{' each' if len(numbers) > 1 else ''}"
        for (before, after, size), numbers in groups.items()
    ]


def load_report_data(report: LoadReport) -> dict[str, Any]:
    """The report as JSON data; `skipped` holds the fields of every `SkippedTensor`."""
    skipped = [asdict(tensor) for tensor in report.skipped]
    data = {"model": str(report.place), "loaded": report.loaded, "weights": report.total, "skipped": skipped}
    extended = [{"name": name, "loaded_rows": old, "new_rows": new} for name, old, new in report.extended]
    return data | ({"extended": extended} if extended else {})
