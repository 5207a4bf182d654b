"""The table of products as it is written to a file, and for people."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from tfkit.commands import shown


def products_json(table: Mapping[str, Any]) -> str:
    """JSON with a row on a line, so that a change of one figure is a change of one line."""
    head = json.dumps(
        {key: value for key, value in table.items() if key not in ("rows", "measured")}, indent=1, allow_nan=False
    )
    lists = ",\n".join(
        f' "{key}": [\n' + ",\n".join(f"  {json.dumps(row, allow_nan=False)}" for row in table[key]) + "\n ]"
        for key in ("rows", "measured")
    )
    return f"{head[:-2]},\n{lists}\n}}\n"


def products_text(table: Mapping[str, Any]) -> list[RenderableType]:
    """A block for every weight: which product is fastest for how many rows, and by how much."""
    on = f"{table['processor'] or 'this processor'}, {table['capability']}, torch {table['torch']}"
    parts: list[RenderableType] = [Text(f"fastest products of decoding on {shown(on)}", "bold")]
    for key, rows in groupby(table["rows"], lambda row: (row["threads"], row["outputs"], row["inputs"])):
        parts += ["", Text(f"weight {key[1]} x {key[2]}, threads {key[0]}", "bold")]
        measured = [each for each in table["measured"] if (each["threads"], each["outputs"], each["inputs"]) == key]
        for name, alike in groupby(rows, lambda row: row["fastest"]):
            spans = [row["rows"] for row in alike]
            parts.append(_line(name, spans[0][0], spans[-1][1], measured))
    if table["wrong"]:
        parts += ["", *(Text(f"wrong, so not used: {each}", "red") for each in table["wrong"])]
    return parts


def _line(name: str, first: int, last: int, measured: Sequence[Mapping[str, Any]]) -> Text:
    span = f"{first}" if first == last else f"{first} to {last}"
    if name == "mkl":
        return Text(f"  {span:>10} rows  mkl")
    inside = [each["microseconds"] for each in measured if first <= each["rows"] <= last]
    ratios = [times["mkl"] / times[name] for times in inside if {"mkl", name} <= times.keys()]
    gain = f"{min(ratios):.2f}" if len(ratios) == 1 else f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else ""
    return Text(f"  {span:>10} rows  {name:<10}  {gain} x as fast as mkl" if gain else f"  {span:>10} rows  {name}", "green")
