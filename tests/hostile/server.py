"""Runs commands of tfkit in processes of their own, with limits; started once, so that each command starts warm.

A request is a JSON line on standard input: {"words": [...], "stdin": PATH, "cwd": DIR, "out": PATH, "err": PATH}. The answer
is a JSON line: {"code": int | null, "signal": int | null}. It is a process of its own because one with threads, such as a
test worker, should not fork. A command reports the modules that it imported; the server imports them for those that follow.
"""

import gc
import importlib
import json
import os
import resource
import signal
import sys
from contextlib import suppress

from tfkit.comparison import runner
from tfkit.comparison.worker import Job, run_job
from tfkit.errors import TfkitError

CPU_SECONDS = 20
"""The promise is 5 s on a usual machine; a slow one has room, and what does not end meets this limit all the same."""
MEMORY = 500 << 20
"""What a command may take beyond what the warm process has already."""
WAIT = 60
"""Seconds after which a command hangs that takes no processor time."""


def data_size() -> int:
    with open("/proc/self/statm") as file:
        return int(file.read().split()[5]) * os.sysconf("SC_PAGE_SIZE")


def child(request: dict) -> int:
    os.setsid()
    os.chdir(request["cwd"])
    for number, (key, flags) in enumerate(
        (("stdin", os.O_RDONLY), ("out", os.O_WRONLY | os.O_CREAT), ("err", os.O_WRONLY | os.O_CREAT))
    ):
        os.dup2(os.open(request[key], flags, 0o600), number)
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, encoding="utf-8", errors=errors)
        for number, mode, errors in ((0, "r", "strict"), (1, "w", "strict"), (2, "w", "backslashreplace"))
    )
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_DATA, (data_size() + MEMORY,) * 2)
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_SECONDS, CPU_SECONDS + 1))
    signal.alarm(WAIT)
    from tfkit.cli import main

    runner.Workers.train = train_here
    code = main(request["words"])
    sys.stdout.flush()
    sys.stderr.flush()
    os.write(request["modules"], "\n".join(sys.modules).encode())
    return code


def train_here(workers: runner.Workers, job: Job) -> str:
    """A run of a comparison without a process of its own: it would take seconds, and is tested elsewhere."""
    try:
        run_job(job)
    except TfkitError as error:
        return str(error)
    return ""


def served(request: dict) -> dict:
    modules = request["modules"] = os.memfd_create("modules")
    number = os.fork()
    if not number:
        try:
            os._exit(child(request))
        except BaseException:
            import traceback

            os.write(2, b"Traceback: " + traceback.format_exc().encode())
            os._exit(70)
    _, status = os.waitpid(number, 0)
    stopped = os.WTERMSIG(status) if os.WIFSIGNALED(status) else None
    code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
    with os.fdopen(modules) as imported:
        imported.seek(0)
        import_all(imported.read().split())
    return {"code": code, "signal": stopped}


def import_all(names: list[str]) -> None:
    """Import what is not imported yet. The garbage collector then leaves these objects alone, so that the pages that hold
    them stay shared with the commands."""
    new = [name for name in names if name not in sys.modules]
    for name in new:
        with suppress(ImportError):  # an entry of `sys.modules` that an extension module made
            importlib.import_module(name)
    if new:
        gc.collect()
        gc.freeze()


def main() -> None:
    import click

    from tfkit.cli.dispatch import commands

    for name in commands.list_commands(context := click.Context(commands)):
        commands.get_command(context, name)
    import_all(["tfkit.train", "tfkit.text", "tfkit.view.training", "tfkit_conformance", "tfkit.data", "pyarrow", "tokenizers"])
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        answers.write(json.dumps(served(json.loads(line))) + "\n")
        answers.flush()
    os._exit(0)  # an ordinary end would print what Triton's extension module leaks


if __name__ == "__main__":
    main()
