"""Starts the processes of `torchrun_jobs.py` as torchrun does, but as forks of a process that has imported all they need.

A request is a JSON line on standard input: {"jobs": PATH, "count": n, "errors": PATH}. The answer is a JSON line: the exit
codes of the processes.
"""

import json
import os
import socket
import sys
import traceback

import torchrun_jobs

from warm.server import import_all


def run_rank(rank: int, request: dict, port: int, modules: int) -> None:
    errors = os.open(request["errors"], os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(errors, 1)
    os.dup2(errors, 2)
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(request["count"]), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }  # fmt: skip
    sys.argv = ["torchrun_jobs.py", request["jobs"]]
    code = 1
    try:
        torchrun_jobs.main()
        code = 0
    except BaseException:
        traceback.print_exc()
    if rank == 0:
        os.write(modules, "\n".join(sys.modules).encode())
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def codes_of(request: dict) -> list[int]:
    """Run a list of jobs in so many processes; their exit codes."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    modules = os.memfd_create("modules")
    children = []
    for rank in range(request["count"]):
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
