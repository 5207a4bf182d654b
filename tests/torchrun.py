"""Run jobs of `train/torchrun_jobs.py`, scripts and commands in several processes: forked from a warm one, or by torchrun."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

import torch.distributed.run

SCRIPT = Path(__file__).parent / "train" / "torchrun_jobs.py"
COMMAND = SCRIPT.with_name("tfkit_command.py")
COMPILER = ("torch._dynamo", "torch._inductor")  # seconds for each process that compiles
LAUNCH = [sys.executable, "-m", "torch.distributed.run", "--standalone"]


def environment() -> dict[str, str]:
    roots = [str(Path(__file__).parents[1]), str(Path(__file__).parent), os.environ.get("PYTHONPATH", "")]
    path = os.pathsep.join(filter(None, roots))
    return {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONFAULTHANDLER": "1", "PYTHONPATH": path}


class ForkedJobs:
    """Runs scripts and torchrun in forks of one process: the same without cold starts of Python."""

    def __init__(self) -> None:
        command = [sys.executable, str(SCRIPT.with_name("forked_jobs.py"))]
        self.server = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(), start_new_session=True
        )

    def __call__(self, jobs: list[dict], folder: Path, count: int = 2) -> tuple[list[list], int, str]:
        """Run jobs in several processes. Returns how they ended in each process, the exit code, and the output."""
        path = write_jobs(jobs, folder)
        done = self.script(SCRIPT, path, count=count, imports=COMPILER if any("shapes" in job for job in jobs) else ())
        return reports(path, count), done.returncode, done.stdout + done.stderr

    def jobs_of_torchrun(self, jobs: list[dict], folder: Path, count: int = 2) -> tuple[list[list], int, str]:
        """The same, in processes that torchrun has started."""
        path = write_jobs(jobs, folder)
        done = self.torchrun(f"--nproc-per-node={count}", script=SCRIPT, words=[path])
        return reports(path, count), done.returncode, done.stdout + done.stderr

    def torchrun(self, *options: str, script: Path = COMMAND, words: Sequence[object]) -> subprocess.CompletedProcess[str]:
        """torchrun with a script, or with the command `tfkit`, and its words. It forks its processes."""
        forking = ["--standalone", *options, "--start-method=fork", "--run-path", script, *words]
        return self.script(Path(torch.distributed.run.__file__), *forking, count=None)

    def script(
        self,
        script: Path,
        *words: object,
        count: int | None = 2,
        environment: dict[str, str] | None = None,
        imports: Sequence[str] = (),
    ) -> subprocess.CompletedProcess[str]:
        """A script in so many processes of one process group, or in one without a group. They begin with some imports."""
        assert self.server.stdin is not None
        assert self.server.stdout is not None
        with TemporaryDirectory() as folder:
            out, errors = Path(folder, "out"), Path(folder, "errors")
            request = {
                "script": str(script), "words": list(map(str, words)), "count": count, "environment": environment or {},
                "out": str(out), "errors": str(errors), "imports": list(imports),
            }  # fmt: skip
            self.server.stdin.write(json.dumps(request) + "\n")
            self.server.stdin.flush()
            codes = json.loads(self.server.stdout.readline())
            return subprocess.CompletedProcess(words, max(codes, key=abs), out.read_text(), errors.read_text())

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
