"""`tfkit bench`: times attention backends on this device, and makes the tables for `auto` and for products on a CPU."""

from __future__ import annotations

import os
import sys
from dataclasses import dataclass, replace
from typing import Any

import click

from tfkit.commands import (
    DTYPE,
    DTYPES,
    READ,
    WRITE,
    OneOf,
    Progress,
    check_places,
    device_option,
    names,
    print_json,
    print_rich,
    print_text,
    seed,
    traceback_option,
    usage_error,
    whole,
    write_whole,
)

from . import seconds

EPILOG = """\b
`attention` times every backend on a set of calls, the cells. `auto` times
backends on the classes of calls that `backend: auto` distinguishes; its
--json FILE is a table for --auto-table, Catalogue.with_auto_table, AutoTable.
`cpu` times the products of decoding, by MKL and oneDNN, with plain and packed
weights; its --json FILE is a table for --cpu-table and tfkit.use_cpu_table.

\b
Rates count visible query-key pairs only, with 4 x head_dim operations forward
and 10 x head_dim backward; decoding counts bytes. Each call is compared with
the float64 reference first. A wrong one is reported and not timed.

\b
Exit codes: 0 fine; 1 a backend was wrong or failed; 2 the input is wrong; 3
cells are missing for lack of time or memory; 130 interrupted: the results so
far are printed and written (`cpu` writes a complete table only).

\b
--json FILE of `attention` writes `machine`, `settings`, `ceiling`, `missing`,
`cells` (`name`, `shape`, `flops`, `backends`: `status`, `seconds`, ...).
`--json -` prints JSON instead of the text.
"""

ROUNDS = {"cuda": 30, "cpu": 11}
USUAL_BUDGET = 60.0
"""Seconds for the default cells on a CPU without --budget."""


@dataclass(frozen=True)
class Options:
    """The options of both benchmarks. `kind` is that of the device: cpu or cuda."""

    device: str
    backends: list[str] | None
    cells: list[str] | None
    dtype: str | None
    lengths: list[int] | None
    rounds: int | None
    budget: float | None
    seed: int
    json: str | None
    html: str | None
    spec: str | None
    threads: list[int] | None

    @property
    def kind(self) -> str:
        return self.device.partition(":")[0]


def lengths(text: str) -> list[int]:
    numbers = [whole(word) for word in names(text)]
    if numbers != sorted(set(numbers)):
        raise ValueError(f"lengths in rising order are expected, `{text}` is written")
    return numbers


@click.command("bench", epilog=EPILOG, short_help="the time of attention backends, or of products of decoding")
@click.argument(
    "what",
    type=OneOf("benchmark", ("attention", "auto", "cpu")),
    metavar="attention|auto|cpu",
    help="Time backends, or make a table for `auto` or for products.",
)
@device_option
@click.option("--backends", type=names, metavar="NAME,...", help="Backends to time (default: all that are installed).")
@click.option("--cells", type=names, metavar="PATTERN,...", help="Cells to time, for `attention`; `*` matches any text.")
@click.option("--dtype", type=DTYPE, metavar="DTYPE", help=f"{', '.join(DTYPES)} (default: float32; bfloat16 on CUDA).")
@click.option("--lengths", type=lengths, metavar="N,...", help="Lengths to time, for `auto`; in rising order.")
@click.option(
    "--spec", type=READ, metavar="SPEC", help="Weights to time, for `cpu`: those of this spec (default: usual sizes)."
)
@click.option("--threads", type=lengths, metavar="N,...", help="Numbers of threads, for `cpu` (default: 1 and torch's).")
@click.option("--rounds", type=whole, metavar="N", help="Rounds per backend (default: 11; 30 on CUDA).")
@click.option("--budget", type=seconds, metavar="SECONDS", help="Time for all cells; less time means fewer rounds.")
@click.option("--tokens", type=whole, metavar="N", help="Tokens in a batch (default: 1024; 16384 on CUDA).")
@click.option("--seed", type=seed, default=0, metavar="N", help="Seed of the inputs.")
@click.option("--list", "only_list", is_flag=True, help="Print the cells and stop.")
@click.option("--json", metavar="FILE", type=WRITE, help="Write the report as JSON; - is standard output.")
@click.option("--html", metavar="FILE", type=WRITE, help="Write the report as an HTML page.")
@traceback_option
def command(what: str, tokens: int | None, only_list: bool, **values: Any) -> int:
    """Time attention backends, or the products of decoding, on this device."""
    options = Options(**values)
    _check_options(what, options, only_list)
    check_places((options.json, options.html), (options.spec,))
    if what == "cpu":
        if tokens is not None:
            raise usage_error("argument --tokens: `tfkit bench cpu` takes none", "see `tfkit bench --help`")
        return _measure_cpu(options)
    from ..bench import cells, classes

    usual = (classes.SCALES if what == "auto" else cells.SCALES)[options.kind]
    scale = usual if tokens is None else replace(usual, tokens=tokens)
    if what == "attention":
        chosen = cells.usual(options.kind) if options.cells is None else cells.chosen(options.cells)
        if only_list:
            return _list(chosen, scale, options.json)
    from ..resolve import require_device

    require_device(options.device)
    return _measure_auto(options, scale) if what == "auto" else _measure(options, chosen, scale)


def _check_options(what: str, options: Options, only_list: bool) -> None:
    of_cpu = {"spec": options.spec, "threads": options.threads}
    of_attention = {"cells": options.cells, "html": options.html, "list": only_list}
    of_both = {"backends": options.backends, "dtype": options.dtype, "budget": options.budget}
    without: dict[str, dict[str, Any]] = {
        "attention": {"lengths": options.lengths, **of_cpu},
        "auto": {**of_attention, **of_cpu},
        "cpu": {"lengths": options.lengths, **of_attention, **of_both},
    }
    if what == "cpu" and options.kind != "cpu":
        raise usage_error(f"argument --device: `tfkit bench cpu` measures the CPU, not {options.device}", "leave it out")
    for name, value in without[what].items():
        if value:
            raise usage_error(f"argument --{name}: `tfkit bench {what}` takes none", "see `tfkit bench --help`")
    if options.html == "-":
        raise usage_error("argument --html: a file is expected", "for instance --html attention.html")


def _list(cells: list[Any], scale: Any, json: str | None) -> int:
    from ..view.bench_text import cells_data, cells_text

    rows = cells_data(cells, scale)
    if json == "-":
        print_json({"cells": rows})
    elif json is not None:
        raise usage_error("--list prints the cells and writes no file", "leave --json out, or write --json -")
    else:
        print_text(cells_text(rows))
    return 0


def _measure(options: Options, cells: list[Any], scale: Any) -> int:
    import json

    from tfkit import load_catalogue

    from ..bench.measure import Settings, run_cells
    from ..view.bench_page import bench_page
    from ..view.bench_text import bench_text

    catalogue = load_catalogue()
    budget = USUAL_BUDGET if options.budget is None and options.cells is None and options.kind == "cpu" else options.budget
    dtype = options.dtype or ("bfloat16" if options.kind == "cuda" else "float32")
    settings = Settings(options.device, dtype, options.rounds or ROUNDS[options.kind], scale, budget, options.seed)
    command = str(click.get_current_context().find_root().obj)
    with Progress("bench") as progress:
        data = run_cells(cells, backends_of(options.backends, catalogue), catalogue, settings, command, progress.show)
    if options.json == "-":
        print_json(data)
    else:
        if options.json is not None:
            write_whole(options.json, json.dumps(data, indent=1, allow_nan=False) + "\n")
        print_rich(*bench_text(data))
    if options.html is not None:
        write_whole(options.html, bench_page(data))
    return exit_code(data)


def _measure_auto(options: Options, scale: Any) -> int:
    from tfkit import load_catalogue

    from ..bench.auto import UNIT, measure_auto
    from ..bench.classes import DTYPES as DTYPES_BY_KIND, classes
    from ..bench.measure import Settings
    from ..view.bench_text import auto_json, auto_text

    catalogue = load_catalogue()
    wanted = None if options.backends is None else [UNIT, *options.backends]
    dtypes = DTYPES_BY_KIND[options.kind] if options.dtype is None else (options.dtype,)
    settings = Settings(options.device, dtypes[0], options.rounds or ROUNDS[options.kind], scale, options.budget, options.seed)
    command = str(click.get_current_context().find_root().obj)
    with Progress("bench") as progress:
        table, reports = measure_auto(
            list(classes(options.kind, options.lengths)),
            dtypes,
            backends_of(wanted, catalogue),
            catalogue,
            settings,
            command,
            progress.show,
        )
    if options.json == "-":
        print_text(auto_json(table))
    else:
        if options.json is not None:
            write_whole(options.json, auto_json(table))
        print_rich(*auto_text(table))
    merged = {key: [item for report in reports for item in report[key]] for key in ("cells", "missing")}
    return exit_code({**merged, "interrupted": reports[-1]["interrupted"]})


def _measure_cpu(options: Options) -> int:
    import torch

    from ..bench.products import SIZES, ProductSettings, measure_products, sizes_of
    from ..view.bench_text import products_json, products_text

    sizes = list(SIZES)
    if options.spec is not None:
        import tfkit

        sizes = sizes_of(tfkit.build(options.spec, device="meta"))
        if not sizes:
            raise usage_error(f"argument --spec: {options.spec} has no linear map", "name a spec with one")
    threads, processors = options.threads or sorted({1, torch.get_num_threads()}), os.cpu_count() or 1
    if options.threads and threads[-1] > processors:
        raise usage_error(f"argument --threads: {threads[-1]:,} threads, and {processors} processors", f"at most {processors}")
    settings = ProductSettings(sizes, threads=threads, rounds=options.rounds or ROUNDS["cpu"], seed=options.seed)
    command = str(click.get_current_context().find_root().obj)
    with Progress("bench") as progress:
        table = measure_products(settings, command, progress.show)
    if options.json == "-":
        print_text(products_json(table))
    else:
        if options.json is not None and not table["interrupted"]:
            write_whole(options.json, products_json(table))
        print_rich(*products_text(table))
    if table["interrupted"]:
        print("tfkit: interrupted; a table that is not complete is not written", file=sys.stderr)
        return 130
    return 1 if table["wrong"] else 0


def exit_code(data: dict[str, Any]) -> int:
    """130 if interrupted, 1 if a backend was wrong or failed, 3 if cells are missing."""
    statuses = {row["status"] for cell in data["cells"] for row in cell["backends"]}
    if data["interrupted"]:
        print("tfkit: interrupted", file=sys.stderr)
        return 130
    if statuses & {"wrong", "failed"}:
        return 1
    return 3 if data["missing"] or statuses & {"memory", "slow"} else 0


def backends_of(wanted: list[str] | None, catalogue: Any) -> list[tuple[Any, Any]]:
    """The backends of these names with default options, or all that are installed."""
    from tfkit.commands import requested_backends_of

    if wanted is None:
        return list(catalogue.ready("backend"))
    if "auto" in wanted:
        raise usage_error("argument --backends: `auto` chooses among backends, it is not one of them", "name the backends")
    parts = requested_backends_of(list(dict.fromkeys(wanted)), catalogue) or ()
    return [(part.entry, part.options) for part in parts]
