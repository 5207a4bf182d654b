"""CPU time of whole commands in fresh processes, and time and peak memory of building transformer-base."""

from __future__ import annotations

import argparse
import json
import resource
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

from interleaved import versions

ROOT = Path(__file__).parent.parent
BASE = str(ROOT / "specs" / "transformer-base.yaml")
COMMANDS = {
    "tfkit --help": ["-m", "tfkit", "--help"],
    "tfkit check": ["-m", "tfkit", "check", BASE],
    "import torch": ["-c", "import torch"],
    "build transformer-base": ["-c", f"import tfkit; tfkit.build({BASE!r})"],
}
PEAK = """
import torch, tfkit, tfkit.builder, tfkit.generate

def peak():  # of this process alone, in kB: what getrusage says is inherited from the parent
    return int(next(line for line in open("/proc/self/status") if line.startswith("VmHWM")).split()[1])

tfkit.build({tiny!r})
before = peak()
model = tfkit.build({base!r})
print((peak() - before) * 1024 / (4 * model.parameter_count()))
"""


def cpu_seconds(arguments: list[str]) -> float:
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    seconds: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for _ in range(options.rounds + 1):
        for name, command in COMMANDS.items():
            seconds[name].append(cpu_seconds(command))
    medians = {name: statistics.median(times[1:]) for name, times in seconds.items()}
    tiny = str(ROOT / "specs" / "transformer-tiny.yaml")
    peak = subprocess.run([sys.executable, "-c", PEAK.format(tiny=tiny, base=BASE)], check=True, capture_output=True, text=True)
    result = {
        "command": " ".join(["python", *sys.argv]),
        **versions(),
        "cpu_seconds": medians,
        "peak_over_parameters": float(peak.stdout),
    }
    for name, median in medians.items():
        print(f"{name:<24} {median:.2f} s of CPU time")
    print(f"peak memory of building transformer-base, above the import: {result['peak_over_parameters']:.2f} x its parameters")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    return result


if __name__ == "__main__":
    main()
