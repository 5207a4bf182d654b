"""The command line of tfkit, with limits on what it may take."""

import os
import resource
import signal
import sys

from tfkit import TfkitError
from tfkit.cli import main
from tfkit.comparison import runner
from tfkit.comparison.worker import Job, run_job
from tfkit_conformance.process import parent

CPU_SECONDS = int(os.environ["CPU_SECONDS"])
MEMORY = 500 << 20
"""What a command may take beyond what the warm process has already."""
CHILD = "--child"
WAIT = 60
"""Seconds after which a command hangs that takes no processor time."""


def data_size() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")


def train_here(workers: runner.Workers, job: Job) -> str:
    """A run of a comparison without a process of its own: it would take seconds, and is tested elsewhere."""
    try:
        run_job(job)
    except TfkitError as error:
        return str(error)
    return ""


def warm_child(code: str) -> list[str]:
    """A child of `tfkit conformance`, through the warm server and with the same limits."""
    return [sys.executable, "-I", "-S", os.environ["WARM_CLIENT"], __file__, CHILD, cold_child(code)[-1]]


if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (data_size() + MEMORY,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
    signal.alarm(WAIT)
    if sys.argv[1:2] == [CHILD]:
        exec(sys.argv[2])
    runner.Workers.train = train_here
    parent.python_command, cold_child = warm_child, parent.python_command
    sys.exit(main(sys.argv[1:]))
