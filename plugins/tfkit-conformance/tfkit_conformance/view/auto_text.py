"""The table of `auto` as it is written to a file, and for people."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.text import Text

from tfkit.commands import row_data, row_in_words, shown
from tfkit.inspection import measured_on, parse_table


def auto_json(table: Mapping[str, Any]) -> str:
    """JSON with a row on a line, so that a change of one figure is a change of one line."""
    head = json.dumps(
        {key: value for key, value in table.items() if key not in ("rows", "left_out")}, indent=1, allow_nan=False
    )
    backends = ",\n".join(
        f"  {json.dumps(name, allow_nan=False)}: [\n"
        + ",\n".join(f"   {json.dumps(row, allow_nan=False)}" for row in rows)
        + "\n  ]"
        for name, rows in table["rows"].items()
    )
    rest = json.dumps(table["left_out"], indent=1, allow_nan=False).replace("\n", "\n ")
    return f'{head[:-2]},\n "rows": {{\n{backends}\n }},\n "left_out": {rest}\n}}\n'


def auto_text(table: Mapping[str, Any]) -> list[RenderableType]:
    """A line for every row, what has none and why."""
    parts: list[RenderableType] = [Text(f"time relative to eager, measured on {shown(measured_on(dict(table)))}", "bold")]
    for name, rows in parse_table(auto_json(table), "the table").items():
        parts += ["", Text(name, "bold")]
        parts += [
            Text(f"  {row.relative_time:5.2f} x  {row_in_words(row_data(row))}", "green" if row.relative_time < 1 else "")
            for row in rows
        ]
    for name, reasons in table["left_out"].items():
        parts.append("")
        parts += [Text(f"{name} has no row for {len(names)} classes: {reason}", "dim") for reason, names in reasons.items()]
    return parts
