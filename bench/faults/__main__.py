"""Runs the conformance suite on faults, one after another, each in a process of its own, until its first finding.
The guided calls come first.

    python bench/faults --list                     the faults: set, kernel, kind, what is wrong
    python bench/faults --json out.json            all of them under `quick`; a second run goes on where the first one ended
    python bench/faults --profile standard --json out.json NAME ...     only these, anew
    python bench/faults --witness                  whether every fault shows in its calls, and the correct kernel does not

`blind`, `third`, `sixth` and `seventh` faults were written without having read the suite, `informed`, `fourth` and `fifth`
ones with it at hand. The suite was improved against all but `seventh`, which is held out. An example may take an
hour, so that a busy machine gives the same verdicts.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from fault import SETS, Fault, load_fault, load_kernel, read_faults, witness

from tfkit_conformance import check_backend

MESSAGE = 250
"""Characters of a finding that are stored."""


def verdict(module: ModuleType, profile: str, seed: int) -> dict[str, Any]:
    """What the suite says of a kernel, up to its first finding."""
    report = check_backend(module.BACKEND, profile=profile, seed=seed, stop_at_first=True, limit=3600.0, guided_first=True)
    first = report.findings[0] if report.findings else None
    return {"verdict": report.verdict, "check": first and first.check, "message": first and first.message[:MESSAGE]}


def apart(work: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `work` gives, and its processor time, in a copy of this process: a kernel may change its settings."""
    began = os.times()
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        with os.fdopen(writing, "w") as pipe:
            json.dump(work(), pipe, allow_nan=False)
            pipe.flush()
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as pipe:
        text = pipe.read()
    os.waitpid(child, 0)
    ended = os.times()
    cpu = ended.children_user + ended.children_system - began.children_user - began.children_system
    return (json.loads(text) if text else {"verdict": "DIED", "check": None, "message": None}) | {"cpu": round(cpu, 1)}


def chosen(names: list[str], groups: list[str]) -> list[Fault]:
    faults = [fault for fault in read_faults() if fault.set in groups]
    unknown = sorted(set(names) - {fault.name for fault in faults})
    if unknown:
        sys.exit(f"there is no fault {', '.join(unknown)} in {' and '.join(groups)}; `python bench/faults --list` shows all")
    return [fault for fault in faults if not names or fault.name in names]


def witnessed(faults: list[Fault]) -> list[str]:
    """The faults whose witness does not tell their kernel from the correct one."""
    wrong = []
    for fault in faults:
        shows = [witness(fault, load_fault(fault)), witness(fault, load_kernel(fault.set, fault.kernel))]
        print(f"{fault.set:10}{fault.name:32}{'shows' if shows == [True, False] else f'DOES NOT SHOW: {shows}'}", flush=True)
        wrong += [fault.name] * (shows != [True, False])
    return wrong


def main(words: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="bench/faults", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("names", nargs="*", help="faults; all by default")
    parser.add_argument("--set", choices=SETS, action="append", help="only faults of this set")
    parser.add_argument("--profile", choices=("quick", "standard", "deep"), default="quick")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="where results are written, one after another")
    what = parser.add_mutually_exclusive_group()
    what.add_argument("--list", action="store_true")
    what.add_argument("--witness", action="store_true")
    options = parser.parse_args(words)
    torch.set_num_threads(1)
    faults = chosen(options.names, options.set or list(SETS))
    if options.list:
        for fault in faults:
            print(f"{fault.set:10}{fault.kernel:12}{fault.kind:14}{fault.name:32}{fault.summary}")
        return 0
    if options.witness:
        return bool(witnessed(faults))
    place: Path | None = options.json
    rows = json.loads(place.read_text())["rows"] if place and place.exists() else []
    key = {"profile": options.profile, "seed": options.seed, "torch": torch.__version__}
    rows = [row for row in rows if not (row["fault"] in options.names and key.items() <= row.items())]
    known = {row["fault"] for row in rows if key.items() <= row.items()}
    for fault in faults:
        if fault.name in known:
            continue
        row = {"fault": fault.name, "set": fault.set, "kind": fault.kind, "summary": fault.summary, **key,
               **apart(lambda fault=fault: verdict(load_fault(fault), options.profile, options.seed)),
               "date": time.strftime("%Y-%m-%d")}  # fmt: skip
        rows.append(row)
        print(f"{fault.set:10}{fault.name:32}{row['cpu']:7.1f} s  {row['check'] or row['verdict']}", flush=True)
        if place:
            place.write_text(json.dumps({"rows": rows}, indent=1, allow_nan=False) + "\n")
    for group in SETS:
        mine = [row for row in rows if row["set"] == group and key.items() <= row.items()]
        print(f"{group}: {sum(row['verdict'] == 'NONCONFORMANT' for row in mine)} of {len(mine)} found by {options.profile}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
