"""`tfkit verify` as text: the checks, their errors, and what failed in words and numbers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich import box
from rich.console import RenderableType
from rich.table import Table
from rich.text import Text

from tfkit.commands import shown

from .verify_data import WORDS, error_in_words, folded, verdict_in_words

STYLES = {"passed": "green", "failed": "bold red", "inconclusive": "yellow", "not run": "yellow", "refused": "dim",
          "not applicable": "dim", "reported": "dim", "not checked": "yellow"}  # fmt: skip


def verify_text(data: Mapping[str, Any]) -> list[RenderableType]:
    """A table of the sub-layers, one of the whole model, notes, failures, the verdict."""
    rows = data["rows"]
    parts = folded([row for row in rows if row["part"] == "sub-layers"])
    whole = [row for row in rows if row["part"] == "whole model"]
    shown_: list[RenderableType] = [_title(data), ""]
    if parts:
        shown_ += [Text("sub-layers, each on its inputs in a run of the model", "bold"), _parts(parts), ""]
    if any(row["dtype"] for row in whole):
        added = sorted({row["dtype"] for row in whole if row["dtype"]} - set(data["dtypes"]))
        besides = f"; {', '.join(added)} is added, where rounding hides no error" if added else ""
        shown_ += [Text(f"whole model: largest error / tolerance{besides}", "bold"), _whole(whole), ""]
    shown_ += _notes([*parts, *folded(whole)])
    failed = [row for row in rows if row["status"] == "failed"]
    for row in failed[:20]:
        with_ = " ".join(filter(None, (row["backend"], row["dtype"], row["device"])))
        shown_.append(
            Text("FAILED ", "bold red")
            .append(f"{row['property']}, {shown(row['where'])} ({with_}): ", "bold")
            .append(shown(row["message"]), "")
        )
    if len(failed) > 20:
        shown_.append(Text(f"{len(failed) - 20} more failures: -o FILE writes them all", "dim"))
    style = {"VERIFIED": "bold green", "FAILED": "bold red", "INCOMPLETE": "bold yellow"}[data["verdict"]]
    return [*shown_, *([""] if failed else []), Text(shown(verdict_in_words(data)), style)]


def _title(data: Mapping[str, Any]) -> Text:
    lengths = ", ".join(f"{name} {length}" for name, length in data["lengths"].items())
    sizes = f"{data['batch']} rows, positions: {lengths}, seed {data['seed']}"
    words = f", {data['parameters']:,} parameters, weights {data['weights']}; {sizes}"
    return Text(shown(data["name"]), "bold").append(words, "")


def _parts(rows: list[dict[str, Any]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("property", "where", "backend", "dtype"):
        table.add_column(name, overflow="fold")
    table.add_column("error/bound", justify="right", no_wrap=True)
    table.add_column("verdict", no_wrap=True)
    for row in rows:
        verdict = Text(WORDS[row["status"]], STYLES[row["status"]])
        table.add_row(row["property"], shown(row["where"]), row["backend"], row["dtype"], error_in_words(row), verdict)
    return table


def _whole(rows: list[dict[str, Any]]) -> Table:
    """Properties down, backends and dtypes across."""
    rows = [row for row in rows if row["dtype"]]
    columns = list(dict.fromkeys((row["backend"], row["dtype"], row["device"]) for row in rows))
    several = len({device for _, _, device in columns}) > 1
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("property", overflow="fold")
    table.add_column("rule")
    for backend, dtype, device in columns:
        table.add_column("\n".join(filter(None, (backend, dtype, device if several else ""))), justify="right")
    cells = {(row["property"], row["backend"], row["dtype"], row["device"]): row for row in rows}
    for name, rule in dict.fromkeys((row["property"], row["rule"]) for row in rows):
        in_columns = [cells.get((name, *column)) for column in columns]
        table.add_row(name, rule, *(_cell(row) for row in in_columns))
    return table


def _cell(row: Mapping[str, Any] | None) -> Text:
    if row is None:
        return Text("")
    if row["status"] == "passed":
        return Text(error_in_words(row), "green")
    return Text(WORDS[row["status"]], STYLES[row["status"]])


def _notes(rows: list[dict[str, Any]]) -> list[RenderableType]:
    """Why something was not evaluated, each reason once."""
    notes: dict[str, list[str]] = {}
    for row in rows:
        if row["status"] != "failed" and row["message"]:
            about = " ".join(filter(None, (row["property"], row["backend"])))
            told = notes.setdefault(f"{WORDS[row['status']]}: {row['message']}", [])
            if about not in told:
                told.append(about)
    lines: list[RenderableType] = [Text(f"{', '.join(about)}: {shown(why)}", "dim") for why, about in notes.items()]
    return [*lines, ""] if lines else []
