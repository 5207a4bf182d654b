"""`tfkit conformance --replay` as text: the earlier and the current result of each stored case."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from tfkit.commands import shown

SAID = {
    "passed": ("passes now", "bold green"), "refused": ("refused now", "bold green"), "failed": ("still fails", "bold red"),
}  # fmt: skip


def replay_text(data: Mapping[str, Any]) -> list[RenderableType]:
    """A block for every case, then how many still fail."""
    lines: list[RenderableType] = []
    for row in data["replayed"]:
        words, style = SAID.get(row["status"], (row["status"], "bold yellow"))
        label = f"{row['check'] or 'all layers'} of {row['name']} on {row['device']}"
        lines.append(Text(words, style).append(f"  {shown(label)}", ""))
        now = _now(row)
        if row["was"] and row["was"] != now:
            lines.append(Padding(Text(f"then: {shown(row['was'])}", "dim"), (0, 0, 0, 2)))
        if now:
            when = "then and now" if row["was"] == now else "now"
            lines.append(Padding(Text(f"{when}: {shown(now)}"), (0, 0, 0, 2)))
        lines.append("")
    counts = {status: sum(row["status"] == status for row in data["replayed"]) for status in ("failed", "passed", "refused")}
    total = len(data["replayed"])
    other = total - sum(counts.values())
    more = f", {counts['refused']} refused by the declaration" if counts["refused"] else ""
    more += f", {other} could not be evaluated" if other else ""
    said = f"{counts['failed']} of {total} still fail, {counts['passed']} pass{more}" if total else "the report has no findings"
    return [*lines, Text(said, "bold").append(f" (exit code {data['exit_code']})", "")]


def _now(row: Mapping[str, Any]) -> str:
    """The result of the case now, without the status and the check, which are in its label."""
    if row["status"] == "passed":
        return ""
    begin = row["check"] if row["status"] == "failed" else row["status"]
    return str(row["now"]).removeprefix(f"{begin}: ")
