"""`tfkit bench auto`: how long every backend takes relative to `eager`, class of calls by class, as the table of `auto`.

    relative_time = geometric mean, over the cells of a class, of median(backend) / median(eager)

in rounds in which the backends take turns. Neighbouring lengths within a tenth of each other share a row; between measured
lengths a and b the border is sqrt(a b). A backend has a row where it was right and timed in every cell of the class. The form
of the table is that of `tfkit.attention.auto_table`; it bears no date, so that equal measurements are equal files.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

from tfkit import Catalogue

from .cells import Cell
from .classes import CallClass
from .measure import Progress, Settings, run_cells

FORM = 1
"""Version of the form of a table: the one that `tfkit.inspection.parse_table` reads."""

UNIT = "eager"
ALIKE = 1.1


@dataclass(frozen=True)
class Figure:
    """A relative time at one measured length."""

    length: int
    time: float


def measure_auto(
    wanted: Sequence[CallClass],
    dtypes: Sequence[str],
    backends: Sequence[tuple[Any, Any]],
    catalogue: Catalogue,
    settings: Settings,
    command: str,
    progress: Progress,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """The table, and the report of each dtype that it was made from."""
    cells = [cell for call_class in wanted for cell in call_class.cells]
    reports: list[dict[str, Any]] = []
    for number, dtype in enumerate(dtypes):
        here = replace(settings, dtype=dtype, budget=_left(settings, reports, len(dtypes) - number))

        def with_dtype(words: str, dtype: str = dtype) -> None:
            progress(f"{dtype}: {words}")

        reports.append(run_cells(cells, backends, catalogue, here, command, with_dtype))
        if reports[-1]["interrupted"]:
            break
    return table_of(wanted, reports), reports


def _left(settings: Settings, reports: Sequence[dict[str, Any]], dtypes: int) -> float | None:
    """An even share of what is left of the budget."""
    if settings.budget is None:
        return None
    spent = math.fsum(report["seconds"] for report in reports)
    return max(0.0, settings.budget - spent) / dtypes


def table_of(wanted: Sequence[CallClass], reports: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """The table from the reports of all dtypes."""
    first = reports[0]
    figures: dict[tuple[str, str, tuple[tuple[str, bool], ...]], list[Figure]] = {}
    left_out: dict[str, dict[str, list[str]]] = {}
    for report in reports:
        rows = {cell["name"]: {row["name"]: row for row in cell["backends"]} for cell in report["cells"]}
        dtype = report["settings"]["dtype"]
        names = {name for row in rows.values() for name in row} - {UNIT}
        for call_class in wanted:
            for name in sorted(names):
                relative, why = _relative(name, call_class.cells, rows)
                if relative is not None:
                    figures.setdefault((name, dtype, call_class.conditions), []).append(Figure(call_class.length, relative))
                else:
                    left_out.setdefault(name, {}).setdefault(why, []).append(f"{dtype} {call_class.cells[0].name}")
    table: dict[str, list[dict[str, Any]]] = {}
    for (name, dtype, conditions), points in figures.items():
        table.setdefault(name, []).extend(_rows(dtype, dict(conditions), points))
    machine = first["machine"]
    return {
        "tfkit_auto": FORM, "device": machine["device"], "device_name": machine["device_name"],
        "capability": machine["capability"], "threads": machine["threads"], "versions": machine["versions"],
        "command": first["command"],
        "settings": {key: first["settings"][key] for key in ("rounds", "tokens", "width", "cache")},
        "rows": table, "left_out": left_out,
    }  # fmt: skip


def _relative(name: str, cells: Sequence[Cell], rows: Mapping[str, Mapping[str, Any]]) -> tuple[float | None, str]:
    """A backend's time relative to eager's over the cells of a class, or None and why."""
    logarithms = []
    for cell in cells:
        measured = rows.get(cell.name, {})
        for who in (UNIT, name):
            row = measured.get(who)
            if row is None:
                return None, "not run"
            if row["status"] != "timed" or not row["seconds"]:
                return None, str(row["reason"]) if who == name else f"{UNIT} {row['status']}"
        logarithms.append(math.log(measured[name]["median"] / measured[UNIT]["median"]))
    return math.exp(statistics.fmean(logarithms)), ""


def _rows(dtype: str, conditions: dict[str, bool], points: Sequence[Figure]) -> list[dict[str, Any]]:
    """Rows that cover every length, neighbours that are alike in one."""
    groups: list[list[Figure]] = []
    for point in sorted(points, key=lambda point: point.length):
        if groups and _alike([*groups[-1], point]):
            groups[-1].append(point)
        else:
            groups.append([point])
    borders = [math.isqrt(one[-1].length * two[0].length) for one, two in pairwise(groups)]
    starts, ends = [1, *(border + 1 for border in borders)], [*borders, None]
    return [
        {"dtypes": [dtype], "lengths": [start, end], **conditions, "relative_time": round(_mean(group), 2)}
        for start, end, group in zip(starts, ends, groups, strict=True)
    ]


def _alike(group: Sequence[Figure]) -> bool:
    times = [point.time for point in group]
    return max(times) <= ALIKE * min(times)


def _mean(group: Sequence[Figure]) -> float:
    return math.exp(statistics.fmean(math.log(point.time) for point in group))
