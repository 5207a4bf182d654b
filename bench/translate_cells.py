"""tfkit and CTranslate2, every cell in one run: transformer-tiny and -base, greedily and with 5 beams, batches of 1, 8 and 32
sentences, float32 and int8. Beside them the bare float32 products at the same numbers of rows: without these there is no
decoding, so their share of the time says how far a cell is from what the products of this machine allow.

    python bench/translate_cells.py --source test.en.gz --target test.de.gz [--json FILE] [--markdown FILE]

With one thread it measures processor time; with `--threads 2` wall time, and two batches are computed at once. Weights are
random: each sentence continues to the longest reference of its batch, in both programs. Cells below 1.05 are in bold.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
from itertools import product
from pathlib import Path
from typing import Any

import torch
import translate
from apart import timed_apart
from interleaved import versions

SHAPES, BEAMS, ROWS = ("tiny", "base"), (1, 5), (1, 8, 32)
BATCHES = {"tiny": {1: 24, 8: 6, 32: 3}, "base": {1: 6, 8: 2, 32: 1}}
"""How many batches of each number of rows: enough for a tenth of a second."""
NAMES = ("tfkit", "CTranslate2 float32", "tfkit int8", "CTranslate2 int8", "bare matrix products")
GOAL = 1.05


def cell(options: argparse.Namespace, shape: str, beams: int, rows: int) -> dict[str, Any]:
    """Median seconds of each program for one cell."""
    words = ["--shape", shape, "--beams", str(beams), "--batch-rows", str(rows), "--threads", str(options.threads)]
    words += ["--workers", str(options.threads), "--sentences", str(options.threads * BATCHES[shape][rows] * rows)]
    words += [
        word for name in ("source", "target") for word in (f"--{name}", str(getattr(options, name))) if getattr(options, name)
    ]
    words += [
        word
        for name in ("layers", "width", "vocab")
        for word in (f"--{name}", str(getattr(options, name)))
        if getattr(options, name)
    ]
    asked = translate.parsed(words)
    clock = "processor time" if options.threads == 1 else "wall"
    seconds, _ = timed_apart({name: (translate.candidate, (name, asked)) for name in NAMES}, options.rounds, clock)
    median = {name: statistics.median(times) for name, times in seconds.items()}
    return {
        "shape": shape, "beams": beams, "rows": rows, "seconds": median,
        "float32": median["CTranslate2 float32"] / median["tfkit"], "int8": median["CTranslate2 int8"] / median["tfkit int8"],
        "products": median["bare matrix products"] / median["tfkit"],
    }  # fmt: skip


def table(cells: list[dict[str, Any]]) -> str:
    """The cells in Markdown: the time of CTranslate2 divided by that of tfkit."""
    lines = ["| | batch | float32 | int8 | share of bare products (float32) |", "| --- | --- | --- | --- | --- |"]
    for each in cells:
        search = "greedy" if each["beams"] == 1 else f"{each['beams']} beams"
        ratios = [f"**{each[name]:.2f}**" if each[name] < GOAL else f"{each[name]:.2f}" for name in ("float32", "int8")]
        lines.append(f"| {each['shape']}, {search} | {each['rows']} | {' | '.join(ratios)} | {each['products']:.2f} |")
    return "\n".join(lines) + "\n"


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path)
    parser.add_argument("--target", type=Path)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--shapes", nargs="+", choices=SHAPES, default=SHAPES)
    parser.add_argument("--beams", nargs="+", type=int, choices=BEAMS, default=BEAMS)
    parser.add_argument("--batch-rows", nargs="+", type=int, choices=ROWS, default=ROWS)
    for name in ("layers", "width", "vocab"):
        parser.add_argument(f"--{name}", type=int, help="of a smaller model")
    parser.add_argument("--json", type=Path)
    parser.add_argument("--markdown", type=Path)
    options = parser.parse_args(arguments)
    torch.set_num_threads(options.threads)  # for the report
    limit = os.environ.get("ATEN_CPU_CAPABILITY")
    result: dict[str, Any] = {
        "command": " ".join(["python", *sys.argv]), **versions(), "versions": translate.versions_of_rivals(),
        **translate.processor(), "kernels": limit, "clock": "processor time" if options.threads == 1 else "wall", "cells": [],
    }  # fmt: skip
    for shape, beams, rows in product(options.shapes, options.beams, options.batch_rows):
        result["cells"].append(cell(options, shape, beams, rows))
        print(table(result["cells"][-1:]).splitlines()[-1], flush=True)
        if options.json is not None:
            options.json.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    if options.markdown is not None:
        options.markdown.write_text(table(result["cells"]), encoding="utf-8")
    return result


if __name__ == "__main__":
    main()
