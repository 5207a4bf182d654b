"""CPU time of whole commands in fresh processes, also relative to `import torch`, and time and peak memory of building
transformer-base. The translator is transformer-tiny after one step of training: what it says does not matter."""

from __future__ import annotations

import argparse
import io
import json
import resource
import statistics
import subprocess
import sys
import tempfile
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from interleaved import versions

from tfkit.cli import main as tfkit
from tfkit.doctor.installation import machine_here

ROOT = Path(__file__).parent.parent
BASE = str(ROOT / "specs" / "transformer-base.yaml")
COMMANDS = {
    "tfkit --help": ["-m", "tfkit", "--help"],
    "tfkit check": ["-m", "tfkit", "check", BASE],
    "tfkit explain": ["-m", "tfkit", "explain", "TFK012"],
    "tfkit explain, a rule": ["-m", "tfkit", "explain", "A2"],
    "import torch": ["-c", "import torch"],
    "build transformer-base": ["-c", f"import tfkit; tfkit.build({BASE!r})"],
}
TRANSLATE = "tfkit translate, one line"
TRAIN = [
    "train", str(ROOT / "specs" / "recipes" / "sample.yaml"), "--set", "stopping.max_steps=1",
    "--set", "validation.metric=loss", "--set", "model.encoder.num_layers=4", "--set", "model.decoder.num_layers=4",
]  # fmt: skip
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
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL, input=b"A dog runs.\n")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    return after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--warm-up", type=int, default=1, help="rounds before those that count")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    with tempfile.TemporaryDirectory() as folder:
        model = str(Path(folder) / "run")
        with redirect_stdout(io.StringIO()), redirect_stderr(io.StringIO()) as said:
            code = tfkit([*TRAIN, "-o", model])
        if code:
            raise SystemExit(said.getvalue())
        commands = {**COMMANDS, TRANSLATE: ["-m", "tfkit", "translate", model]}
        seconds: dict[str, list[float]] = {name: [] for name in commands}
        for _ in range(options.warm_up + options.rounds):
            for name, command in commands.items():
                seconds[name].append(cpu_seconds(command))
    medians = {name: statistics.median(times[options.warm_up :]) for name, times in seconds.items()}
    relative = {name: median / medians["import torch"] for name, median in medians.items()}
    tiny = str(ROOT / "specs" / "transformer-tiny.yaml")
    peak = subprocess.run([sys.executable, "-c", PEAK.format(tiny=tiny, base=BASE)], check=True, capture_output=True, text=True)
    result = {
        "command": " ".join(["python", *sys.argv]),
        **versions(),
        "machine": machine_here(),
        "cpu_seconds": medians,
        "relative_to_import_torch": relative,
        "peak_over_parameters": float(peak.stdout),
    }
    for name, median in medians.items():
        print(f"{name:<25} {median:.2f} s of CPU time, {relative[name]:.2f} x import torch")
    print(f"peak memory of building transformer-base, above the import: {result['peak_over_parameters']:.2f} x its parameters")
    if options.json:
        options.json.parent.mkdir(parents=True, exist_ok=True)
        options.json.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return result


if __name__ == "__main__":
    main()
