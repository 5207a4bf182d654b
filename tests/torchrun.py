"""Run jobs of `train/torchrun_jobs.py`, and commands, in several processes started by torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent / "train" / "torchrun_jobs.py"
LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


def environment() -> dict[str, str]:
    roots = [str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, roots))
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", "PYTHONPATH": path}


def run_jobs(jobs: list[dict], folder: Path, count: int = 2) -> tuple[list[list], int, str]:
    """Run jobs in several processes. Returns how they ended in each process, the exit code of torchrun, and its output."""
    path = folder / "jobs.json"
    path.write_text(json.dumps(jobs))
    command = [*LAUNCH, f"--nproc-per-node={count}", str(SCRIPT), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False, env=environment())
    found = [path.with_suffix(f".{rank}") for rank in range(count)]
    return [json.loads(each.read_text()) if each.is_file() else [] for each in found], done.returncode, done.stderr
