"""A report of `tfkit bench attention` for people: a block for every cell, a line for every backend."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any

from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from tfkit.commands import bytes_in_words, row_data, row_in_words, scaled, seconds_in_words, shown
from tfkit.inspection import measured_on, parse_table

FORMULA = (
    "Rates count visible query-key pairs only, with 4 x head_dim floating-point operations forward and 10 x head_dim "
    "backward; decoding counts the bytes of query, key, value and output."
)
READING = (
    "Times are medians over rounds in which the backends take turns, ± half the interquartile range. Of ceiling: share of the "
    "rate of a large matrix product (decoding: of a large copy) in the same run. Best peer: time of the fastest other backend "
    "over this one's; above 1 this one is the fastest."
)


def machine_in_words(data: Mapping[str, Any]) -> str:
    """The device and what ran on it."""
    machine = data["machine"]
    capability = machine["capability"]
    threads = f", {machine['threads']} thread{'s' if machine['threads'] > 1 else ''}"
    where = f" (sm_{capability[0]}{capability[1]})" if capability else threads
    versions = ", ".join(f"{name} {number}" for name, number in machine["versions"].items())
    return f"{machine['device_name']}{where}, {data['settings']['dtype']}; {versions}"


def ceiling_in_words(data: Mapping[str, Any]) -> str:
    ceiling = data["ceiling"]
    if not ceiling:
        return "Ceilings: not measured."
    return f"Ceilings: {scaled(ceiling['flops'], 'FLOP/s')} (matrix product), {scaled(ceiling['bytes'], 'B/s')} (copy)."


def shape_in_words(row: Mapping[str, Any]) -> str:
    """`B2 H8 Q512 K512 D64`, with G where heads share keys."""
    shape = row["shape"]
    groups = f" G{shape['kv_heads']}" if shape["kv_heads"] != shape["heads"] else ""
    return f"B{shape['batch']} H{shape['heads']}{groups} Q{shape['queries']} K{shape['keys']} D{shape['head_dim']}"


def figures(backend: Mapping[str, Any], decode: bool) -> dict[str, str]:
    """Every figure as text, "" if it is missing."""
    rate = backend["bytes_per_second"] if decode else backend["flops_per_second"]
    share, peer, memory, median = backend["share"], backend["best_peer"], backend["peak_bytes"], backend["median"]
    return {
        "time": seconds_in_words(median) if median else "",
        "spread": _spread(backend) if median else "",
        "rate": scaled(rate, "B/s" if decode else "FLOP/s") if rate else "",
        "share": f"{100 * share:.1f} %" if share is not None else "",
        "memory": bytes_in_words(memory) if memory is not None else "not measured" if median else "",
        "peer": f"{peer:.2f} x" if peer is not None else "",
    }


def said(backend: Mapping[str, Any]) -> str:
    """What is said where no figure counts: the first reason, and how many more there are."""
    status, more = backend["status"], len(backend["reasons"]) - 1
    words = {"refused": "refused: ", "wrong": "WRONG, not timed: ", "failed": "failed: ", "slow": "slow: "}.get(status, "")
    return words + str(backend["reason"]) + (f" (and {more} more)" if more > 0 else "")


def _spread(backend: Mapping[str, Any]) -> str:
    if len(backend["seconds"]) == 1:
        return "once"
    return f"±{50 * (backend['high'] - backend['low']) / backend['median']:.0f} %"


def cells_data(cells: Iterable[Any], scale: Any) -> list[dict[str, Any]]:
    """One object for each cell of `tfkit_conformance.bench.cells`; `length` is nominal where sentences are drawn."""
    return [
        {"name": cell.name, "family": cell.family, "training": cell.training, "batch": cell.batch(scale),
         "heads": cell.heads(scale)[0], "kv_heads": cell.heads(scale)[1], "length": cell.length, "head_dim": cell.head_dim}
        for cell in cells
    ]  # fmt: skip


def cells_text(rows: list[dict[str, Any]]) -> str:
    """A line each."""
    wide = max(len(row["name"]) for row in rows)
    return "\n".join(
        f"{row['name']:<{wide}}  {row['batch']} x {row['length']}, {row['heads']} heads of {row['head_dim']}"
        + (f", {row['kv_heads']} of keys" if row["kv_heads"] != row["heads"] else "")
        for row in rows
    )


COLUMNS = {"time": 9, "spread": 6, "rate": 13, "share": 10, "memory": 12, "peer": 9}
TITLES = {"time": "median", "spread": "", "rate": "rate", "share": "of ceiling", "memory": "memory", "peer": "best peer"}


def bench_text(data: Mapping[str, Any]) -> list[RenderableType]:
    """What `tfkit_conformance.bench.measure` measured."""
    lines: list[RenderableType] = [Text(machine_in_words(data), "bold"), Text(ceiling_in_words(data))]
    wide = max((len(row["name"]) for cell in data["cells"] for row in cell["backends"]), default=0)
    if data["cells"]:
        lines += ["", Text(f"  {'':<{wide}}{_aligned(TITLES)}", "dim")]
    for cell in data["cells"]:
        lines += ["", Text.assemble((cell["name"], "bold"), f"  {shape_in_words(cell)}"), *_lines(cell, wide)]
    reasons: dict[str, list[str]] = {}
    for row in data["missing"]:
        reasons.setdefault(row["reason"], []).append(row["cell"])
    for reason, cells in reasons.items():
        lines += ["", Text(f"not run, {reason}: {', '.join(cells)}", "bold")]
    return [*lines, "", Text(f"{FORMULA} {READING} Memory: {data['settings']['memory']}.", "dim")]


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


def products_json(table: Mapping[str, Any]) -> str:
    """JSON with a row on a line, so that a change of one figure is a change of one line."""
    head = json.dumps(
        {key: value for key, value in table.items() if key not in ("rows", "measured")}, indent=1, allow_nan=False
    )
    lists = ",\n".join(
        f' "{key}": [\n' + ",\n".join(f"  {json.dumps(row, allow_nan=False)}" for row in table[key]) + "\n ]"
        for key in ("rows", "measured")
    )
    return f"{head[:-2]},\n{lists}\n}}\n"


def products_text(table: Mapping[str, Any]) -> list[RenderableType]:
    """A block for every weight: which product is fastest for how many rows, and by how much."""
    on = f"{table['processor'] or 'this processor'}, {table['capability']}, torch {table['torch']}"
    parts: list[RenderableType] = [Text(f"fastest products of decoding on {shown(on)}", "bold")]
    for key, rows in groupby(table["rows"], lambda row: (row["threads"], row["outputs"], row["inputs"])):
        parts += ["", Text(f"weight {key[1]} x {key[2]}, threads {key[0]}", "bold")]
        measured = [
            measurement
            for measurement in table["measured"]
            if (measurement["threads"], measurement["outputs"], measurement["inputs"]) == key
        ]
        for name, alike in groupby(rows, lambda row: row["fastest"]):
            spans = [row["rows"] for row in alike]
            parts.append(_line(name, spans[0][0], spans[-1][1], measured))
    if table["wrong"]:
        parts += ["", *(Text(f"wrong, so not used: {wrong}", "red") for wrong in table["wrong"])]
    return parts


def _line(name: str, first: int, last: int, measured: Sequence[Mapping[str, Any]]) -> Text:
    span = f"{first}" if first == last else f"{first} to {last}"
    if name == "mkl":
        return Text(f"  {span:>10} rows  mkl")
    inside = [measurement["microseconds"] for measurement in measured if first <= measurement["rows"] <= last]
    ratios = [times["mkl"] / times[name] for times in inside if {"mkl", name} <= times.keys()]
    gain = f"{min(ratios):.2f}" if len(ratios) == 1 else f"{min(ratios):.2f} to {max(ratios):.2f}" if ratios else ""
    return Text(f"  {span:>10} rows  {name:<10}  {gain} x as fast as mkl" if gain else f"  {span:>10} rows  {name}", "green")
