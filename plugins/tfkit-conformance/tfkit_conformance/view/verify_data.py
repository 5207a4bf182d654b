"""The rows of a verification folded: equal sites and layers become one line, `encoder.0-5.self_attention`."""

from __future__ import annotations

import csv
import io
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

from tfkit.commands import ranges, shown

WORDS = {"passed": "holds", "failed": "FAILED", "not run": "not run", "inconclusive": "inconclusive", "refused": "refused",
         "not applicable": "does not apply", "reported": "reported", "not checked": "not checked"}  # fmt: skip
"""Statuses as people read them."""

WITHOUT_NUMBERS = ("dependence", "dropout on", "own parameters", "gradient flow")
"""Properties that compare no numbers."""


def folded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Rows that differ in their layer alone are one, with the worst of their errors; failures stay alone."""
    groups: dict[tuple[Any, ...], list[dict[str, Any]]] = {}
    for number, row in enumerate(rows):
        node, index, rest = pieces(row["where"])
        alone = number if row["status"] == "failed" or index is None else -1
        key = (*(row[name] for name in ("part", "property", "rule", "backend", "dtype", "device", "status")), node, rest, alone)
        groups.setdefault((*key, _key(row, index)), []).append(row)
    return [_folded(group) for group in groups.values()]


def _key(row: Mapping[str, Any], index: int | None) -> str:
    return str(row["message"]).replace(str(row["where"]), "") if index is not None else str(row["message"])


def _folded(group: list[dict[str, Any]]) -> dict[str, Any]:
    worst = [row["worst"] for row in group if row["worst"] is not None]
    node, index, rest = pieces(group[0]["where"])
    where = group[0]["where"]
    if len(group) > 1 and index is not None:
        numbers = sorted({pieces(row["where"])[1] or 0 for row in group})
        where = f"{node}.{ranges(numbers)}" + (f".{rest}" if rest else "")
    return {**group[0], "where": where, "worst": max(worst, key=float) if worst else None, "count": len(group)}


def pieces(where: str) -> tuple[str, int | None, str]:
    """`encoder`, 3 and `self_attention` of `encoder.3.self_attention`; a place of another form is not split."""
    node, _, below = where.partition(".")
    index, _, rest = below.partition(".")
    return (node, int(index), rest) if index.isdecimal() else (where, None, "")


def error_in_words(row: Mapping[str, Any]) -> str:
    """The largest error as a share of its bound, `exact` where not one bit may change, nothing where nothing was evaluated."""
    if row["status"] not in ("passed", "reported"):
        return ""
    if row["worst"] is None:
        return "holds" if row["property"] in WITHOUT_NUMBERS else "exact"
    return f"{float(row['worst']):.2f}"


def verdict_in_words(data: Mapping[str, Any]) -> str:
    """One sentence."""
    rows = data["rows"]
    evaluated = [row for row in rows if row["status"] in ("passed", "failed")]
    errors = [float(row["worst"]) for row in evaluated if row["status"] == "passed" and row["worst"] is not None]
    where = (
        f"on {', '.join(data['devices'])} in {', '.join(data['dtypes'])} with {', '.join(data['backends']) or 'no attention'}"
    )
    if data["verdict"] == "FAILED":
        failed = [row for row in rows if row["status"] == "failed"]
        return f"FAILED: {len(failed)} of {len(evaluated)} checks of {data['name']} failed {where}."
    if data["verdict"] == "INCOMPLETE":
        missed = [
            f"`{row['where']}` is not checked: {row['message']}"
            if row["status"] == "not checked"
            else f"{' '.join(filter(None, (row['backend'], row['dtype'], row['device'])))}: {row['message']}"
            for row in data["missed"]
        ]
        reasons = "; ".join(dict.fromkeys([*missed, *(["the run has not finished"] if not data["finished"] else [])]))
        why = reasons or "nothing was evaluated"
        return f"INCOMPLETE: nothing failed in {len(evaluated)} checks of {data['name']}, but {why}."
    largest = f"the largest error is {max(errors, default=0.0):.2f} of its bound"
    return f"VERIFIED: {data['name']} passed all {len(evaluated)} checks that apply {where}; {largest}."


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
    """Text that ends no cell of a table, and is neither a link nor HTML."""
    return re.sub(r"[|<\[]", r"\\\g<0>", shown(str(value)))


FILES: dict[str, Callable[[Mapping[str, Any]], str]] = {".md": markdown, ".csv": comma_separated, ".json": as_json}
"""Writers by suffix."""
