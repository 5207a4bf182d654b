"""The table of a verification as a file: Markdown for a paper or a release, CSV and JSON for programs."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping
from typing import Any

from tfkit.commands import shown

from .verify_data import WORDS, error_in_words, folded, verdict_in_words

COLUMNS = ("part", "property", "rule", "where", "backend", "dtype", "device", "status", "worst", "message", "tensor", "index",
           "got", "want", "bound")  # fmt: skip
FORMULA = ("=", "+", "-", "@")
"""What a formula of a spreadsheet begins with."""


def markdown(data: Mapping[str, Any]) -> str:
    """Facts, the verdict, a table with equal sites folded, then notes and failures in words."""
    facts = {
        "model": data["name"], "parameters": f"{data['parameters']:,}", "weights": data["weights"],
        "devices": ", ".join(data["devices"]), "dtypes": ", ".join(data["dtypes"]), "backends": ", ".join(data["backends"]),
        "batch": data["batch"], "lengths": ", ".join(f"{name} {length}" for name, length in data["lengths"].items()),
        "seed": data["seed"], "versions": ", ".join(f"{name} {number}" for name, number in data["versions"].items()),
    }  # fmt: skip
    lines = [f"# {_cell(data['name'])}: {data['verdict']}", "", _cell(verdict_in_words(data)), ""]
    lines += [f"- {name}: {_cell(value)}" for name, value in facts.items()]
    rows = folded(data["rows"])
    lines += ["", "| part | property | rule | where | backend | dtype | device | error / allowed | verdict |", f"|{'---|' * 9}"]
    for row in rows:
        told = [row[name] for name in ("part", "property", "rule", "where", "backend", "dtype", "device")]
        lines.append(f"| {' | '.join(map(_cell, (*told, error_in_words(row), WORDS[row['status']])))} |")
    notes = list(dict.fromkeys(_note(row) for row in rows if row["message"]))
    return "\n".join([*lines, *(["", *notes] if notes else [])]) + "\n"


def _note(row: Mapping[str, Any]) -> str:
    about = " ".join(filter(None, (_cell(row["where"]), row["backend"], row["dtype"])))
    return f"- {row['property']}, {about}: {WORDS[row['status']]}: {_cell(row['message'])}"


def comma_separated(data: Mapping[str, Any]) -> str:
    """Every row, unfolded, with what the table was made with on each. An apostrophe stands before text that a spreadsheet would
    take for a formula."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    versions = " ".join(f"{name}={number}" for name, number in data["versions"].items())
    writer.writerow(("model", "parameters", "seed", "versions", *COLUMNS))
    for row in data["rows"]:
        index = " ".join(map(str, row["index"]))
        cells = ["" if row[name] is None else index if name == "index" else row[name] for name in COLUMNS]
        writer.writerow(map(_plain, (data["name"], data["parameters"], data["seed"], versions, *cells)))
    return text.getvalue()


def _plain(cell: Any) -> Any:
    """A number, or text on one line that is no formula."""
    text = shown(cell) if isinstance(cell, str) else ""
    return f"'{text}" if text.startswith(FORMULA) else text or cell


def as_json(data: Mapping[str, Any]) -> str:
    return json.dumps(data, indent=1, allow_nan=False) + "\n"


def _cell(value: Any) -> str:
    """Text that does not end a table's cell."""
    return shown(str(value)).replace("|", "\\|")


FILES: dict[str, Callable[[Mapping[str, Any]], str]] = {".md": markdown, ".csv": comma_separated, ".json": as_json}
"""Writers by suffix."""
