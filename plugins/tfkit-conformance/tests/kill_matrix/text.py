"""The kill matrix as text: which check killed each mutant, and false alarms on correct kernels."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from tfkit.commands import shown
from tfkit_conformance.process.messages import format_number

Data = Mapping[str, Any]


def kill_matrix_text(data: Data) -> list[RenderableType]:
    """The mutants by family, each with the check that killed it; kills by check; the correct kernels; the outcome."""
    seeds = ", ".join(map(str, data["seeds"]))
    parts: list[RenderableType] = [Text(f"the suite evaluated by mutants, profile {data['profile']}, seeds {seeds}")]
    families: dict[str, list[Data]] = {}
    for row in data["mutants"]:
        families.setdefault(row["family"], []).append(row)
    for family, rows in families.items():
        parts += ["", Text(f"{family}: {sum(map(_killed, rows))} of {len(rows)} seen", "bold"), _mutants(rows)]
    if data["kills"]:
        counts = sorted(data["kills"].items(), key=lambda item: -item[1])
        parts += ["", Text("seen first by: " + ", ".join(f"{shown(check)} {count}" for check, count in counts))]
    if data["correct_kernels"]:
        parts += ["", Text("correct implementations", "bold"), *_correct_kernels(data["correct_kernels"])]
    return [*parts, "", _outcome(data)]


def _killed(row: Data) -> bool:
    return bool(row["killed_by"]) and all(row["killed_by"])


def _mutants(rows: list[Data]) -> Table:
    table = Table.grid(padding=(0, 2, 0, 2))
    for _ in range(3):
        table.add_column(overflow="fold")
    for row in rows:
        by = ", ".join(dict.fromkeys(check or "NOT SEEN" for check in row["killed_by"])) or "NOT TRIED"
        table.add_row(Text(row["name"]), Text(row["summary"], "dim"), Text(by, "green" if _killed(row) else "bold red"))
    return table


def _correct_kernels(rows: list[Data]) -> list[RenderableType]:
    table = Table(box=None, padding=(0, 2, 0, 2), show_edge=False)
    table.add_column("", overflow="fold")
    for name in ("evaluations", "alarms", "largest error/bound", "s"):
        table.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        alarms = Text(str(len(row["alarms"])), "bold red" if row["alarms"] else "green")
        table.add_row(Text(row["name"]), str(row["examples"]), alarms, format_number(row["worst"], 3), f"{row['seconds']:.1f}")
    told = [
        Padding(Text(f"{row['name']}: {shown(alarm)}", "bold red"), (0, 0, 0, 2)) for row in rows for alarm in row["alarms"]
    ]
    return [table, *told]


def _outcome(data: Data) -> Text:
    mutants, kernels = data["mutants"], data["correct_kernels"]
    seen, calm = sum(map(_killed, mutants)), sum(not row["alarms"] for row in kernels)
    words = f"{seen} of {len(mutants)} mutants seen under every seed"
    if kernels:
        words += f"; {calm} of {len(kernels)} correct implementations never alarmed"
    good = data["exit_code"] == 0
    end = f" (exit code {data['exit_code']}, {data['seconds']:.0f} s)"
    return Text("SOUND " if good else "UNSOUND ", "bold green" if good else "bold red").append(words + end, "")
