"""Run jobs of `train/torchrun_jobs.py`, and commands, in several processes: started by torchrun, or forked from a warm one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parent / "train" / "torchrun_jobs.py"
LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


def environment() -> dict[str, str]:
    roots = [str(Path(__file__).parents[1]), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, roots))
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", "PYTHONPATH": path}


def run_jobs(jobs: list[dict], folder: Path, count: int = 2) -> tuple[list[list], int, str]:
    """Run jobs in several processes of torchrun. Returns how they ended in each process, the exit code, and the output."""
    path = write_jobs(jobs, folder)
    command = [*LAUNCH, f"--nproc-per-node={count}", str(SCRIPT), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False, env=environment())
    return reports(path, count), done.returncode, done.stderr


class ForkedJobs:
    """Runs jobs in forks of one process: the same, without torchrun and its cold starts."""

    def __init__(self) -> None:
        command = [sys.executable, str(SCRIPT.with_name("forked_jobs.py"))]
        self.server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(), start_new_session=True
        )

    def __call__(self, jobs: list[dict], folder: Path, count: int = 2) -> tuple[list[list], int, str]:
        path = write_jobs(jobs, folder)
        errors = path.with_suffix(".errors")
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        self.server.stdin.write(json.dumps({"jobs": str(path), "count": count, "errors": str(errors)}) + "\n")
        self.server.stdin.flush()
        codes = json.loads(self.server.stdout.readline())
        return reports(path, count), max(map(abs, codes)), errors.read_text()

    def close(self) -> None:
        self.server.communicate()


def write_jobs(jobs: list[dict], folder: Path) -> Path:
    path = folder / "jobs.json"
    path.write_text(json.dumps(jobs))
    return path


def reports(path: Path, count: int) -> list[list]:
    """How the jobs ended in each process; empty where it wrote nothing."""
    found = [path.with_suffix(f".{rank}") for rank in range(count)]
    return [json.loads(each.read_text()) if each.is_file() else [] for each in found]
