"""Starts the processes of a script as torchrun does, or torchrun itself, but as forks of one process that has imported much.

A request is a JSON line on standard input: {"script": PATH, "words": [...], "count": n, "environment": {...}, "out": PATH,
"errors": PATH, "imports": [...]}. Without a count, the script is one process that starts others itself. The answer is a JSON
line: the exit codes of the processes.
"""

import json
import os
import runpy
import socket
import sys
import traceback

import torchrun_jobs  # noqa: F401  # here, so that no fork has to import what jobs need

from warm.server import import_all


def run_rank(rank: int, request: dict, port: int, modules: int) -> None:
    for number, name in ((1, "out"), (2, "errors")):
        os.dup2(os.open(request[name], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), number)
    os.environ |= request["environment"]
    if request["count"]:
        os.environ |= {
            "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(request["count"]), "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
        }  # fmt: skip
    sys.argv = [request["script"], *request["words"]]
    code = 1
    try:
        runpy.run_path(request["script"], run_name="__main__")
        code = 0
    except SystemExit as stopped:
        code = stopped.code or 0
    except BaseException:
        traceback.print_exc()
    if rank == 0:
        os.write(modules, "\n".join(sys.modules).encode())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def codes_of(request: dict) -> list[int]:
    """Run a script in so many processes; their exit codes."""
    import_all(request["imports"])
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    modules = os.memfd_create("modules")
    children = []
    for rank in range(request["count"] or 1):
        if not (number := os.fork()):
            run_rank(rank, request, port, modules)
        children.append(number)
    codes = [os.waitstatus_to_exitcode(os.waitpid(number, 0)[1]) for number in children]
    with os.fdopen(modules) as imported:
        imported.seek(0)
        import_all(imported.read().split())
    return codes


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    for line in sys.stdin:
        answers.write(json.dumps(codes_of(json.loads(line))) + "\n")
        answers.flush()
    os._exit(0)  # an ordinary end would print what Triton's extension module leaks


if __name__ == "__main__":
    main()
