"""Training on several cores of a CPU: threads that share every operation, or processes that share the batches of every step.

    python bench/train_processes.py --source train.en --target train.de [--count 2] [--minutes 0.7] [--rounds 3] [--json FILE]

Each is `tfkit train` as its users start it, one after the other, round by round. Steps are of `--tokens` tokens in all of them.
It prints the time that 1,000 target tokens take by the run's log, without its first steps; validation does not count.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from interleaved import report

ROOT = Path(__file__).parent.parent
RECIPE = ROOT / "specs" / "recipes" / "translate-small.yaml"
SAMPLE = ROOT / "specs" / "recipes" / "sample"


def seconds_of(run: Path, first: int) -> float:
    """For 1,000 target tokens, from the step after the `first` ones."""
    entries = [json.loads(line) for line in (run / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    steps = [entry for entry in entries if entry["kind"] == "step"][first:]
    return 1000 * sum(step["seconds"] for step in steps) / sum(step["target_tokens"] for step in steps)


def trained(options: argparse.Namespace, threads: int, processes: int) -> float:
    """A run with so many threads in each of so many processes."""
    several = ["-m", "torch.distributed.run", "--nproc-per-node", str(processes)] if processes > 1 else []
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, *several, "-m", "tfkit", "train", str(RECIPE), "-o", f"{folder}/run"]
        command += ["--source", str(options.source), "--target", str(options.target)]
        settings = [f"stopping={{max_minutes: {options.minutes}}}", f"batching.accumulate={processes}", *options.overrides]
        settings.append(f"batching.tokens={options.tokens // processes}")
        command += [word for each in settings for word in ("--set", each)]
        environment = {**os.environ, "OMP_NUM_THREADS": str(threads)}
        done = subprocess.run(command, env=environment, capture_output=True, text=True)
        if done.returncode:
            raise SystemExit(done.stderr)
        return seconds_of(Path(folder) / "run", options.first)


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--source", type=Path, default=SAMPLE / "train.en")
    parser.add_argument("--target", type=Path, default=SAMPLE / "train.de")
    parser.add_argument("--count", type=int, default=2, help="of threads, and of processes")
    parser.add_argument("--tokens", type=int, default=2048)
    parser.add_argument("--minutes", type=float, default=0.7)
    parser.add_argument("--first", type=int, default=40, help="steps that warm up")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--set", dest="overrides", action="append", default=[], help="of the recipe, as `tfkit train` takes it")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    candidates = {
        "1 thread": (1, 1),
        f"{options.count} threads": (options.count, 1),
        f"{options.count} processes": (1, options.count),
    }
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    for _ in range(options.rounds):
        for name, (threads, processes) in candidates.items():
            seconds[name].append(trained(options, threads, processes))
    title = f"1,000 target tokens of training, steps of at most {options.tokens} tokens a side"
    return report(title, seconds, "1 thread", options.json, load=os.getloadavg()[1])


if __name__ == "__main__":
    main()
