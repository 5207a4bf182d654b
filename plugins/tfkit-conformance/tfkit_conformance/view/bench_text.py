"""A report of `tfkit bench attention` for people: a block for every cell, a line for every backend."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from .bench_formatting import FORMULA, READING, ceiling_in_words, figures, machine_in_words, said, shape_in_words

COLUMNS = {"time": 9, "spread": 6, "rate": 13, "share": 10, "memory": 12, "peer": 9}
TITLES = {"time": "median", "spread": "", "rate": "rate", "share": "of ceiling", "memory": "memory", "peer": "best peer"}


def bench_text(data: Mapping[str, Any]) -> list[RenderableType]:
    """What `tfkit_conformance.bench.measure` measured."""
    shown: list[RenderableType] = [Text(machine_in_words(data), "bold"), Text(ceiling_in_words(data))]
    wide = max((len(row["name"]) for cell in data["cells"] for row in cell["backends"]), default=0)
    if data["cells"]:
        shown += ["", Text(f"  {'':<{wide}}{_aligned(TITLES)}", "dim")]
    for cell in data["cells"]:
        shown += ["", Text.assemble((cell["name"], "bold"), f"  {shape_in_words(cell)}"), *_lines(cell, wide)]
    reasons: dict[str, list[str]] = {}
    for row in data["missing"]:
        reasons.setdefault(row["reason"], []).append(row["cell"])
    for reason, cells in reasons.items():
        shown += ["", Text(f"not run, {reason}: {', '.join(cells)}", "bold")]
    return [*shown, "", Text(f"{FORMULA} {READING} Memory: {data['settings']['memory']}.", "dim")]


def _lines(cell: Mapping[str, Any], wide: int) -> Iterator[RenderableType]:
    timed = [row["median"] for row in cell["backends"] if row["status"] == "timed" and row["median"]]
    for row in cell["backends"]:
        words = figures(row, cell["decode"])
        name = f"  {row['name']:<{wide}}"
        if row["status"] == "timed":
            yield Text(name + _aligned(words), "green" if row["median"] == min(timed) else "")
        else:
            style = "bold red" if row["status"] in ("wrong", "failed") else "dim"
            yield Padding(Text(f"{row['name']:<{wide}}  {said(row)}", style), (0, 0, 0, 2))


def _aligned(words: Mapping[str, str]) -> str:
    return "".join(f"  {words[name]:>{width}}" for name, width in COLUMNS.items())
