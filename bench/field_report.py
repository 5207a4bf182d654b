"""Runs the conformance suite on public attention functions and writes bench/results/field.json.

    python bench/field_report.py [--only LIBRARY ...] [--profile quick] [--seed 0]

bench/field/functions.yaml names the functions, and the files beside it adapt the layout of arguments. Each function runs by
`tfkit conformance --callable` in a process of its own. `--only` replaces the rows of these libraries and keeps the others.
docs/field-report.md shows the rows.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from importlib.metadata import version
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
FUNCTIONS = HERE / "field" / "functions.yaml"
RESULTS = HERE / "results" / "field.json"


def functions() -> list[dict[str, Any]]:
    """What the report checks."""
    return list(yaml.safe_load(FUNCTIONS.read_text()))


def row(function: dict[str, Any], profile: str, seed: int) -> dict[str, Any] | None:
    """The result of one function; None if it could not be called."""
    with tempfile.TemporaryDirectory() as directory:
        file = Path(directory) / "report.json"
        words = [
            "--callable",
            function["target"],
            "--signature",
            function["signature"],
            "--profile",
            profile,
            "--seed",
            str(seed),
        ]
        words += ["--dtype", function["dtypes"]] if "dtypes" in function else []
        command = [sys.executable, "-m", "tfkit", "conformance", *words, "--json", str(file)]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", **function.get("environment", {})}
        done = subprocess.run(command, cwd=FUNCTIONS.parent, env=environment, capture_output=True, text=True, check=False)
        if not file.exists():
            print(f"{function['target']}: exit code {done.returncode}\n{done.stderr[-2000:]}", file=sys.stderr, flush=True)
            return None
        report = json.loads(file.read_text())
    found = report.get("function") or {}
    shown = ("check", "message", "call", "failed", "examples")
    return {
        **{name: function[name] for name in ("library", "what", "target", "signature")},
        "version": version(function["library"]),
        "profile": profile,
        "seed": seed,
        "dtypes": report["dtypes"],
        "supports": found.get("supports", []),
        "refused": found.get("refused", {}),
        "wrong": found.get("wrong", {}),
        "verdict": report["verdict"],
        "examples": sum(check["examples"] for check in report["checks"]),
        "seconds": report["seconds"],
        "findings": [{name: each.get(name) for name in shown} for each in report["findings"]],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", nargs="+", default=[], help="libraries, or targets")
    parser.add_argument("--profile", default="quick")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    stored = json.loads(RESULTS.read_text()) if RESULTS.exists() else {"rows": []}
    rows = {each["target"] + each["what"]: each for each in stored["rows"]}
    for function in functions():
        if given.only and not {function["library"], function["target"]} & set(given.only):
            continue
        made = row(function, given.profile, given.seed)
        if made is None:
            continue
        rows[function["target"] + function["what"]] = made
        print(f"{made['library']} {made['version']} {made['what']}: {made['verdict']}, {made['seconds']:.0f} s", flush=True)
        order = [each["target"] + each["what"] for each in functions()]
        kept = sorted(
            (each for key, each in rows.items() if key in order), key=lambda each: order.index(each["target"] + each["what"])
        )
        about = {"python": sys.version.split()[0], "torch": version("torch"), "suite": version("tfkit-conformance")}
        RESULTS.write_text(json.dumps({**about, "rows": kept}, indent=1, allow_nan=False) + "\n")


if __name__ == "__main__":
    main()
