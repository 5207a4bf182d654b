"""A report of `tfkit bench attention` as one HTML page that needs nothing else: no script, no network."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tfkit.commands import page

from .bench_text import FORMULA, READING, ceiling_in_words, figures, machine_in_words, said, shape_in_words

FIGURES = ("time", "spread", "rate", "share", "memory", "peer")
NARROW_LEAVES_OUT = ("spread", "share", "memory", "peer")
"""Figures that a narrow screen does not show."""


@dataclass(frozen=True)
class Row:
    """One backend in one cell: figures, or the reason without them. `width` is that of its bar, in percent."""

    name: str
    is_best: bool = False
    width: float = 0.0
    figures: tuple[tuple[str, str], ...] = ()
    reason: str = ""
    title: str = ""
    is_bad: bool = False


@dataclass(frozen=True)
class Cell:
    name: str
    shape: str
    rows: tuple[Row, ...]


def bench_page(data: Mapping[str, Any]) -> str:
    """The page. A bar is as long as the share of the ceiling, scaled so that the longest of a cell's family fills its track."""
    families = []
    for family in dict.fromkeys(cell["family"] for cell in data["cells"]):
        cells = [cell for cell in data["cells"] if cell["family"] == family]
        longest = max((row["share"] or 0.0 for cell in cells for row in cell["backends"]), default=0.0)
        families.append((family, [_cell(cell, longest) for cell in cells]))
    return page(
        Path(__file__).with_name("bench.html"),
        title="Attention backends",
        machine=machine_in_words(data),
        ceiling=ceiling_in_words(data),
        command=data["command"],
        interrupted=data["interrupted"],
        families=families,
        narrow_leaves_out=NARROW_LEAVES_OUT,
        missing=[(row["cell"], row["reason"]) for row in data["missing"]],
        notes=f"{FORMULA} {READING} Memory: {data['settings']['memory']}. Bars: share of the ceiling.",
    )


def _cell(cell: Mapping[str, Any], longest: float) -> Cell:
    timed = [row["median"] for row in cell["backends"] if row["status"] == "timed" and row["median"]]
    rows = [_row(row, cell["decode"], longest, min(timed, default=0.0)) for row in cell["backends"]]
    return Cell(cell["name"], shape_in_words(cell), tuple(rows))


def _row(row: Mapping[str, Any], decode: bool, longest: float, best: float) -> Row:
    if row["status"] != "timed":
        title = "; ".join(row["reasons"]) or row["reason"]
        return Row(row["name"], reason=said(row), title=title, is_bad=row["status"] in ("wrong", "failed"))
    words = figures(row, decode)
    width = 100 * (row["share"] or 0.0) / longest if longest else 0.0
    return Row(row["name"], row["median"] == best, width, tuple((key, words[key]) for key in FIGURES))
