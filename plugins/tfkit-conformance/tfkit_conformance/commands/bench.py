"""`tfkit bench`: attention backends measured on this device, and the table that `auto` chooses by."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from tfkit.commands import (
    Parser,
    add_device,
    add_dtype,
    check_place,
    names,
    place,
    print_json,
    print_rich,
    print_text,
    requested_backends_of,
    usage_error,
    whole,
    write_whole,
)

from .conformance import seconds
from .status_line import status_line

SUMMARY = "measure attention backends on this device"

EPILOG = """\
attention measures every backend at every kind of call. auto measures the
classes of calls that `auto` distinguishes; --json FILE then writes the table that
`--auto-table FILE`, Catalogue.with_auto_table and a plugin's AutoTable read.

Rates count visible pairs alone: 4 x head_dim operations each forward, 10 x
head_dim backward; decoding counts bytes. Every call is checked against the
float64 reference before it is timed; a wrong one is shown as wrong, not timed.

Exit codes: 0 fine; 1 a backend was wrong or failed; 2 the input is wrong;
3 cells are missing, for want of time or memory; 130 interrupted, with all that
was measured until then printed and written.

--json FILE writes `machine`, `settings`, `ceiling`, `cells` (`name`, `shape`,
`flops`, `backends`: `status`, `reason`, `seconds`, `median`, ...), `missing`.
`--json -` writes it to standard output instead of the text."""

ROUNDS = {"cuda": 30, "cpu": 11}
USUAL_BUDGET = 60.0
"""Default seconds for the default cells of a CPU."""


def arguments(parser: Parser) -> None:
    parser.add_argument("what", metavar="WHAT", choices=("attention", "auto"), help="attention or auto")
    add_device(parser)
    parser.add_argument("--backends", type=names, metavar="NAME,...", help="only these (default all that are installed)")
    parser.add_argument(
        "--cells", type=names, metavar="PATTERN,...", help="which cells, `*` for any text; all; --list shows them"
    )
    add_dtype(parser)
    parser.set_defaults(dtype=None)
    parser.add_argument("--lengths", type=lengths, metavar="N,...", help="of auto: measured lengths, in rising order")
    parser.add_argument("--rounds", type=whole, metavar="N", help="turns of every backend (default 11, on CUDA 30)")
    parser.add_argument("--budget", type=seconds, metavar="SECONDS", help="for all; fewer rounds where it is short")
    parser.add_argument("--tokens", type=whole, metavar="N", help="tokens in a batch (default 1024, on CUDA 16384)")
    parser.add_argument("--seed", type=whole, default=0, metavar="N", help="of the inputs (default 0)")
    parser.add_argument("--list", action="store_true", help="only list the cells that would be measured")
    parser.add_argument("--json", metavar="FILE", type=place, help="write the report as JSON; - is standard output")
    parser.add_argument("--html", metavar="FILE", type=place, help="write the report as an HTML page")
    parser.add_argument("--traceback", action="store_true", help="print where tfkit itself failed, for a bug report")


def run(options: argparse.Namespace) -> int:
    _check_options(options)
    for path in (options.json, options.html):
        if path not in (None, "-"):
            check_place(path)
    from dataclasses import replace

    from ..bench import cells, classes

    kind = options.device.partition(":")[0]
    usual = classes.SCALES if options.what == "auto" else cells.SCALES
    scale = usual[kind] if options.tokens is None else replace(usual[kind], tokens=options.tokens)
    if options.what == "attention":
        chosen = cells.usual(kind) if options.cells is None else cells.chosen(options.cells)
        if options.list:
            return _list(chosen, scale, options.json)
    from ..resolve import require_device

    require_device(options.device)
    return _measure_auto(options, kind, scale) if options.what == "auto" else _measure(options, kind, chosen, scale)


def _check_options(options: argparse.Namespace) -> None:
    unsupported = ("lengths",) if options.what == "attention" else ("cells", "html", "list")
    for name in unsupported:
        if getattr(options, name):
            raise usage_error(f"argument --{name}: `tfkit bench {options.what}` takes none", "see `tfkit bench --help`")
    if options.html == "-":
        raise usage_error("argument --html: a file is expected", "for instance --html attention.html")


def _list(cells: list[Any], scale: Any, json: str | None) -> int:
    from ..view.bench_cells import cells_data, cells_text

    rows = cells_data(cells, scale)
    if json == "-":
        print_json({"cells": rows})
    elif json is not None:
        raise usage_error("--list prints the cells and writes no file", "leave --json out, or write --json -")
    else:
        print_text(cells_text(rows))
    return 0


def _measure(options: argparse.Namespace, kind: str, cells: list[Any], scale: Any) -> int:
    import json

    from tfkit import load_catalogue

    from ..bench.measure import Settings, run_cells
    from ..view.bench_page import bench_page
    from ..view.bench_text import bench_text

    catalogue = load_catalogue()
    budget = USUAL_BUDGET if options.budget is None and options.cells is None and kind == "cpu" else options.budget
    dtype = options.dtype or ("bfloat16" if kind == "cuda" else "float32")
    settings = Settings(options.device, dtype, options.rounds or ROUNDS[kind], scale, budget, options.seed)
    command = options.command_line
    with status_line() as write:
        data = run_cells(cells, backends_of(options.backends, catalogue), catalogue, settings, command, write)
    if options.json == "-":
        print_json(data)
    else:
        if options.json is not None:
            write_whole(options.json, json.dumps(data, indent=1) + "\n")
        print_rich(*bench_text(data))
    if options.html is not None:
        write_whole(options.html, bench_page(data))
    return exit_code(data)


def _measure_auto(options: argparse.Namespace, kind: str, scale: Any) -> int:
    from tfkit import load_catalogue

    from ..bench.auto import UNIT, measure_auto
    from ..bench.classes import DTYPES, classes
    from ..bench.measure import Settings
    from ..view.auto_text import auto_json, auto_text

    catalogue = load_catalogue()
    wanted = None if options.backends is None else [UNIT, *options.backends]
    dtypes = DTYPES[kind] if options.dtype is None else (options.dtype,)
    settings = Settings(options.device, dtypes[0], options.rounds or ROUNDS[kind], scale, options.budget, options.seed)
    command = options.command_line
    with status_line() as write:
        table, reports = measure_auto(
            list(classes(kind, options.lengths)), dtypes, backends_of(wanted, catalogue), catalogue, settings, command, write
        )
    if options.json == "-":
        print_text(auto_json(table))
    else:
        if options.json is not None:
            write_whole(options.json, auto_json(table))
        print_rich(*auto_text(table))
    merged = {key: [item for report in reports for item in report[key]] for key in ("cells", "missing")}
    return exit_code({**merged, "interrupted": reports[-1]["interrupted"]})


def lengths(text: str) -> list[int]:
    found = [whole(each) for each in names(text)]
    if found != sorted(set(found)):
        raise argparse.ArgumentTypeError(f"lengths in rising order are expected, `{text}` is written")
    return found


def exit_code(data: dict[str, Any]) -> int:
    """130 interrupted, 1 where something is wrong, 3 where something is missing."""
    statuses = {row["status"] for cell in data["cells"] for row in cell["backends"]}
    if data["interrupted"]:
        print("tfkit: interrupted", file=sys.stderr)
        return 130
    if statuses & {"wrong", "failed"}:
        return 1
    return 3 if data["missing"] or statuses & {"memory", "slow"} else 0


def backends_of(wanted: list[str] | None, catalogue: Any) -> list[tuple[Any, Any]]:
    """The backends of these names with their options as they are by default, or all that are installed."""
    if wanted is None:
        return list(catalogue.ready("backend"))
    if "auto" in wanted:
        raise usage_error("argument --backends: `auto` chooses among backends and is none", "name the backends")
    parts = requested_backends_of(list(dict.fromkeys(wanted)), catalogue) or ()
    return [(part.entry, part.options) for part in parts]
