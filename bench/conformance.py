"""How good the conformance suite is: false alarms on correct kernels, and which check kills which mutant.

    python bench/conformance.py correct --runs 20000    # -> bench/results/correct_kernels.json
    python bench/conformance.py kills                   # -> bench/results/kill_matrix.json
    python bench/conformance.py kills --only a,b        # these mutants, or kernels, anew in the same file

`correct` evaluates correct implementations on drawn cases, under seeds from 1,000 on, with which nothing was tuned; it counts
runs, alarms and undecided cases, and keeps the largest error as a share of its bound. `kills` runs the whole quick profile on
every mutant, without stopping at the first finding.
"""

from __future__ import annotations

import argparse
import json
import platform
import sys
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, seed as seeded, settings

sys.path.insert(0, str(Path(__file__).parents[1] / "plugins" / "tfkit-conformance" / "tests"))  # holds the kill matrix

from kill_matrix.correct_kernels import CORRECT_KERNELS
from kill_matrix.independent_kernels import INDEPENDENT
from tfkit.catalogue import load_catalogue
from tfkit_conformance.attention.backend_under_test import BackendUnderTest, backend_under_test
from tfkit_conformance.attention.evaluated import Evaluated
from tfkit_conformance.attention.strategies import cases
from tfkit_conformance.callables.check import function_under_test
from tfkit_conformance.finding import Inconclusive, Violation
from tfkit_conformance.mutants import ATTENTION_MUTANTS
from tfkit_conformance.suite.conformance import check_backend
from tfkit_conformance.suite.layers import LAYERS

RESULTS = Path(__file__).parent / "results"
HELD_OUT = 1000
DTYPES = ("float32", "bfloat16", "float16", "float64")


def subjects() -> list[tuple[str, BackendUnderTest, float]]:
    """The correct implementations, each with its share of the runs: flex takes ten times as long as the others."""
    catalogue = load_catalogue()
    found = [
        (kernel.name, backend_under_test(kernel.entry, attend=kernel.attend, tf32=kernel.tf32), 1.0)
        for kernel in CORRECT_KERNELS
    ]
    installed = [(name, backend_under_test(catalogue.find("backend", name)), 0.1 if name == "flex" else 1.0)
                 for name in catalogue.names("backend")]  # fmt: skip
    functions = [
        (name, function_under_test(function, "additive_mask", supports=[*supports, "strides"], dtypes=DTYPES).subject, 0.5)
        for name, (function, supports) in INDEPENDENT.items()
    ]
    return found + [each for each in installed if "cpu" in {device.kind for device in each[1].capabilities.devices}] + functions


def evaluate_all(subject: BackendUnderTest, dtype: str, runs: int, seed: int) -> dict[str, Any]:
    """`runs` drawn cases through every layer."""
    row: dict[str, Any] = {"runs": 0, "alarms": [], "inconclusive": 0, "worst": 0.0}
    backward = subject.capabilities.backward and subject.name != "flex"

    def body(case: Any) -> None:
        if not subject.accepts(case.request(subject.device)):
            return
        row["runs"] += 1
        evaluated = Evaluated(subject, case)
        for layer in LAYERS:
            try:
                row["worst"] = max(row["worst"], layer.evaluate(evaluated) or 0.0)
            except Inconclusive:
                row["inconclusive"] += 1
                return
            except Violation as violation:
                row["alarms"].append({"message": str(violation), "case": case.as_data()})
                return

    chosen = settings(max_examples=runs, database=None, deadline=None, phases=[Phase.generate],
                      suppress_health_check=list(HealthCheck))  # fmt: skip
    chosen(seeded(seed)(given(cases(subject, dtype, None, backward))(body)))()
    return row


def correct_kernels(runs: int, before: Sequence[dict[str, Any]] = (), only: Collection[str] = ()) -> dict[str, Any]:
    """False alarms on held-out seeds. With `only`, the other rows are those of `before`."""
    kernels = subjects()
    each = runs / (sum(share for _, _, share in kernels) * len(DTYPES))
    rows = [row for row in before if row["name"] not in only]
    for number, (name, subject, share) in enumerate(kernels):
        if only and name not in only:
            continue
        for dtype in DTYPES:
            if dtype not in subject.capabilities.dtypes:
                continue
            started = time.perf_counter()
            row = evaluate_all(subject, dtype, round(each * share), HELD_OUT + number)
            rows.append({"name": name, "dtype": dtype, **row, "seconds": round(time.perf_counter() - started, 1)})
            progress = f"{row['runs']:6} runs {len(row['alarms']):3} alarms, largest {row['worst']:.3f}"
            print(f"{name:24}{dtype:10}{progress}", flush=True)
    return {
        "runs": sum(row["runs"] for row in rows),
        "alarms": sum(len(row["alarms"]) for row in rows),
        "inconclusive": sum(row["inconclusive"] for row in rows),
        "worst": max(row["worst"] for row in rows),
        "rows": rows,
    }


def kills(before: Sequence[dict[str, Any]] = (), only: Collection[str] = ()) -> dict[str, Any]:
    """Mutant by mutant the checks that kill it under the quick profile. With `only`, the other rows are those of `before`."""
    known, rows = {row["mutant"]: row for row in before}, []
    for mutant in ATTENTION_MUTANTS:
        if only and mutant.name not in only:
            rows += [known[mutant.name]] if mutant.name in known else []
            continue
        report = check_backend(backend_under_test(mutant.entry, attend=mutant.fresh()), profile="quick", shrink_steps=0)
        seen = [check.name for check in report.checks if check.status == "failed"]
        rows.append({"mutant": mutant.name, "family": mutant.family, "summary": mutant.summary, "killed_by": seen})
        print(f"{mutant.family:14}{mutant.name:40}{', '.join(seen) or 'SURVIVED'}", flush=True)
    counts: dict[str, int] = {}
    for row in rows:
        for check in row["killed_by"]:
            counts[check] = counts.get(check, 0) + 1
    return {"mutants": len(rows), "killed": sum(bool(row["killed_by"]) for row in rows), "by_check": counts, "rows": rows}


FILES = {"correct": "correct_kernels.json", "kills": "kill_matrix.json"}


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=FILES)
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--only", default="")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    place = options.output or RESULTS / FILES[options.what]
    before = json.loads(place.read_text())["rows"] if options.only else []
    only = set(filter(None, options.only.split(",")))
    found = correct_kernels(options.runs, before, only) if options.what == "correct" else kills(before, only)
    found |= {"torch": torch.__version__, "python": platform.python_version(), "device": "cpu"}
    place.write_text(json.dumps(found, indent=1, allow_nan=False) + "\n")
    print({key: value for key, value in found.items() if key != "rows"})


if __name__ == "__main__":
    main()
