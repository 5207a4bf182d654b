"""Runs Python scripts in forks of one warm process, so that a command starts in milliseconds instead of seconds.

`python server.py SOCKET` listens. A request is a line of JSON with three open files for the standard streams: {"script": PATH,
"words": [...], "cwd": DIR, "environment": {...}}. The answer is one, too: {"code": int | null, "signal": int | null}.
Requests may overlap, as in a pipe of two commands. A script is killed, with its children, when the connection of its request
closes. The server is a process of its own because one with threads, such as a test worker, should not fork. A script reports
the modules that it imported; the server imports them for those that follow.
"""

import gc
import importlib
import json
import os
import runpy
import selectors
import signal
import socket
import sys
import sysconfig
import warnings
from contextlib import suppress
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
LASTING = tuple(str(path) for path in (ROOT / "tfkit", ROOT / "plugins", *map(sysconfig.get_path, ("stdlib", "platlib"))))
"""Modules of other places belong to one script alone."""


def run(request: dict[str, Any], streams: list[int]) -> int:
    """The script as a process would run it; its exit code."""
    os.setsid()
    os.chdir(request["cwd"])
    for number, stream in enumerate(streams):
        os.dup2(stream, number)
        os.close(stream)
    os.environ.clear()
    os.environ.update(request["environment"])
    sys.path[:0] = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path and path not in sys.path]
    sys.stdin, sys.stdout, sys.stderr = (
        os.fdopen(number, mode, buffering, encoding="utf-8", errors=errors)
        for number, mode, buffering, errors in ((0, "r", -1, "strict"), (1, "w", -1, "strict"), (2, "w", 1, "backslashreplace"))
    )
    if os.environ.get("PYTHONWARNINGS") == "ignore":
        warnings.simplefilter("ignore")
    sys.argv = [request["script"], *request["words"]]
    try:
        runpy.run_path(request["script"], run_name="__main__")
    except SystemExit as stopped:
        if stopped.code is not None and not isinstance(stopped.code, int):
            print(stopped.code, file=sys.stderr)
            return 1
        return stopped.code or 0
    return 0


def script(request: bytes, streams: list[int], imported: int) -> None:
    """Ends the process."""
    before, code = set(sys.modules), 70
    try:
        code = run(json.loads(request), streams)
        sys.stdout.flush()
    except BaseException:  # shown as Python shows it when a process ends by it
        sys.excepthook(*sys.exc_info())
    with suppress(OSError, ValueError):
        sys.stderr.flush()
    new = [name for name, module in sys.modules.items() if name not in before and lasting(module)]
    os.write(imported, "\n".join(new).encode())
    os._exit(code)


def lasting(module: object) -> bool:
    return str(getattr(module, "__file__", None)).startswith(LASTING)


class Running:
    """A script that runs: the process, the connection that waits for its end, and the file of the modules that it imports."""

    def __init__(self, listening: socket.socket) -> None:
        """Takes a request and starts its script."""
        self.connection, _ = listening.accept()
        data, streams, _, _ = socket.recv_fds(self.connection, 1 << 20, 3)
        while not data.endswith(b"\n") and (more := self.connection.recv(1 << 20)):
            data += more
        self.imported = os.memfd_create("modules")
        self.process = os.fork()
        if not self.process:
            listening.close()
            self.connection.close()
            script(data, streams, self.imported)
        self.ended = os.pidfd_open(self.process)
        for stream in streams:
            os.close(stream)

    def kill(self) -> None:
        """The script, and its children once it has a group of its own."""
        os.kill(self.process, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.killpg(self.process, signal.SIGKILL)

    def answer(self) -> list[str]:
        """Says how the script ended; the modules that it imported."""
        _, status = os.waitpid(self.process, 0)
        answer = {
            "code": os.WEXITSTATUS(status) if os.WIFEXITED(status) else None,
            "signal": os.WTERMSIG(status) if os.WIFSIGNALED(status) else None,
        }
        with suppress(OSError):  # who asked is gone
            self.connection.sendall(json.dumps(answer).encode() + b"\n")
        self.connection.close()
        os.close(self.ended)
        with os.fdopen(self.imported) as imported:
            imported.seek(0)
            return imported.read().split()


def import_all(names: list[str]) -> None:
    """Import what is not imported yet. The garbage collector then leaves these objects alone, so that the pages that hold
    them stay shared with the scripts."""
    new = [name for name in names if name not in sys.modules]
    for name in new:
        with suppress(ImportError):  # an entry of `sys.modules` that an extension module made
            importlib.import_module(name)
    if new:
        gc.collect()
        gc.freeze()


def main(path: str) -> None:
    import click

    from tfkit.cli.dispatch import commands

    for name in commands.list_commands(context := click.Context(commands)):
        commands.get_command(context, name)
    import_all(["tfkit.train", "tfkit.text", "tfkit.view.training", "tfkit_conformance", "tfkit.data", "pyarrow", "tokenizers"])
    with socket.socket(socket.AF_UNIX) as listening, selectors.DefaultSelector() as ready:
        listening.bind(path)
        listening.listen()
        ready.register(listening, selectors.EVENT_READ)
        ready.register(sys.stdin, selectors.EVENT_READ)
        print("ready", flush=True)
        while True:
            key, _ = ready.select()[0]
            running = key.data
            if key.fileobj is sys.stdin:  # whoever started this process ends
                return
            if key.fileobj is listening:
                running = Running(listening)
                ready.register(running.connection, selectors.EVENT_READ, running)
                ready.register(running.ended, selectors.EVENT_READ, running)
            elif key.fileobj is running.connection:  # closed
                ready.unregister(running.connection)
                running.kill()
            else:
                ready.unregister(running.ended)
                with suppress(KeyError):
                    ready.unregister(running.connection)
                import_all(running.answer())


if __name__ == "__main__":
    main(sys.argv[1])
