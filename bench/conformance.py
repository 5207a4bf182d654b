"""How good the conformance suite is: false alarms on correct kernels, and which check sees which seeded fault.

    python bench/conformance.py zoo --runs 20000        # -> bench/results/conformance_zoo.json
    python bench/conformance.py kills                   # -> bench/results/conformance_kills.json
    python bench/conformance.py kills --only a,b        # these faults anew, in the same file

`zoo` judges correct implementations on drawn cases, under seeds from 1,000 on, which nothing was tuned with; it counts runs,
alarms and undecided cases, and keeps the largest error as a share of its bound. `kills` runs the whole quick profile on every
fault, without stopping at the first finding.
"""

from __future__ import annotations

import argparse
import json
import platform
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import torch
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import seed as seeded

from kill_matrix.correct_kernels import CORRECT_KERNELS
from tfkit.catalogue import load_catalogue
from tfkit_conformance.attention.evaluated import Evaluated
from tfkit_conformance.attention.strategies import cases
from tfkit_conformance.attention.subject import BackendUnderTest, subject_of
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
        (specimen.name, subject_of(specimen.entry, attend=specimen.attend, tf32=specimen.tf32), 1.0)
        for specimen in CORRECT_KERNELS
    ]
    installed = [(name, subject_of(catalogue.find("backend", name)), 0.1 if name == "flex" else 1.0)
                 for name in catalogue.names("backend")]  # fmt: skip
    return found + [each for each in installed if "cpu" in {device.kind for device in each[1].capabilities.devices}]


def judge_all(subject: BackendUnderTest, dtype: str, runs: int, seed: int) -> dict[str, Any]:
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
                row["worst"] = max(row["worst"], layer.check_request(evaluated) or 0.0)
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


def zoo(runs: int) -> dict[str, Any]:
    """False alarms on held-out seeds."""
    animals = subjects()
    each = runs / (sum(share for _, _, share in animals) * len(DTYPES))
    rows = []
    for number, (name, subject, share) in enumerate(animals):
        for dtype in DTYPES:
            if dtype not in subject.capabilities.dtypes:
                continue
            started = time.perf_counter()
            row = judge_all(subject, dtype, round(each * share), HELD_OUT + number)
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
    """Fault by fault the checks that see it under the quick profile. With `only`, the other rows are those of `before`."""
    known, rows = {row["fault"]: row for row in before}, []
    for diagnostic in ATTENTION_MUTANTS:
        if only and diagnostic.name not in only:
            rows += [known[diagnostic.name]] if diagnostic.name in known else []
            continue
        report = check_backend(subject_of(diagnostic.entry, attend=diagnostic.fresh()), profile="quick", shrink_steps=0)
        seen = [check.name for check in report.checks if check.status == "failed"]
        rows.append({"fault": diagnostic.name, "family": diagnostic.family, "summary": diagnostic.summary, "seen_by": seen})
        print(f"{diagnostic.family:14}{diagnostic.name:40}{', '.join(seen) or 'SURVIVED'}", flush=True)
    counts: dict[str, int] = {}
    for row in rows:
        for check in row["seen_by"]:
            counts[check] = counts.get(check, 0) + 1
    return {"diagnostics": len(rows), "killed": sum(bool(row["seen_by"]) for row in rows), "by_check": counts, "rows": rows}


def main(words: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("what", choices=["zoo", "kills"])
    parser.add_argument("--runs", type=int, default=20_000)
    parser.add_argument("--only", default="")
    parser.add_argument("--output", type=Path)
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    place = options.output or RESULTS / f"conformance_{options.what}.json"
    if options.what == "zoo":
        found = zoo(options.runs)
    else:
        before = json.loads(place.read_text())["rows"] if options.only else []
        found = kills(before, set(filter(None, options.only.split(","))))
    found |= {"torch": torch.__version__, "python": platform.python_version(), "device": "cpu"}
    place.write_text(json.dumps(found, indent=1) + "\n")
    print({key: value for key, value in found.items() if key != "rows"})


if __name__ == "__main__":
    main()
