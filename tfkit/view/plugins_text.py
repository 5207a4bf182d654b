"""`tfkit plugins` for people."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.table import Table
from rich.text import Text


def plugins_text(data: Mapping[str, Any]) -> list[RenderableType]:
    """A table of the entries, slot by slot, then what could not be loaded."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    for name in ("slot", "name", "summary", "from"):
        table.add_column(name, overflow="fold", no_wrap=name in ("slot", "name"))
    slot = None
    for entry in data["entries"]:
        first = entry["slot"] if entry["slot"] != slot else ""
        slot = entry["slot"]
        source = f"{entry['distribution']} {entry['version']}".strip()
        table.add_row(Text(first, "bold"), Text(entry["name"], "cyan"), Text(entry["summary"]), Text(source, "dim"))
    shown: list[RenderableType] = [table]
    for plugin in data["broken"]:
        line = Text("broken: ", "bold red").append(f"{plugin['plugin']} of {plugin['distribution']}: {plugin['reason']}", "")
        shown += ["", line]
    return shown


def backends_text(names: list[str], rows: list[list[str]]) -> Table:
    """What each attention backend declares; an axis that it does not declare it refuses."""
    table = Table(box=None, padding=(0, 2, 0, 0), show_edge=False)
    table.add_column("", no_wrap=True)
    for name in names:
        table.add_column(name, overflow="fold")
    for axis, *said in rows:
        table.add_row(Text(axis, "bold"), *[Text(words, "dim" if words == "no" else "") for words in said])
    return table
