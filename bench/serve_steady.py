"""Memory of `tfkit serve` over thousands of requests, and how long `/health` takes meanwhile.

The server is a process of its own, and so are the clients. Any translation model serves. Memory is the resident set after each
round of requests; the first round is for warming up. One more client asks for `/health`, again and again. Linux only.
"""

from __future__ import annotations

import http.client
import sys
import threading
import time
from pathlib import Path
from typing import Any

from interleaved import versions

from serve import quantiles, run_clients, run_server, served_model, started, write
from tfkit.doctor.installation import machine_here


def resident(pid: int) -> float:
    """Megabytes of a process in memory."""
    lines = Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:")) / 1024


def probe(url: str, stop: threading.Event, seconds: list[float]) -> None:
    """Asks for `/health` until `stop`."""
    host, port = url.removeprefix("http://").split(":")
    line = http.client.HTTPConnection(host, int(port), timeout=300)
    while not stop.wait(0.01):
        start = time.perf_counter()
        line.request("GET", "/health")
        response = line.getresponse()
        response.read()
        assert response.status == 200
        seconds.append(time.perf_counter() - start)
    line.close()


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = served_model(__doc__, texts=4, clients=16, beams=1)
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=10, help="into which the requests are divided")
    options = parser.parse_args(arguments)
    lines = options.source.read_text(encoding="utf-8").splitlines()
    count = options.requests // options.rounds
    requests = [[lines[(at + row) % len(lines)] for row in range(options.texts)] for at in range(count)]
    (server, told), (clients, answers) = started(run_server, "tfkit", options), started(run_clients, options, requests)
    url = told.recv()
    stop, health = threading.Event(), list[float]()
    asking = threading.Thread(target=probe, args=(url, stop, health))
    asking.start()
    megabytes, seconds = [resident(server.pid)], []
    for _ in range(options.rounds):
        answers.send(url)
        took, *_ = answers.recv()
        seconds.append(took)
        megabytes.append(resident(server.pid))
    stop.set()
    asking.join()
    for process in (server, clients):
        process.terminate()
        process.join()
    warm = megabytes[1:]
    result = {
        "title": f"{count * options.rounds} requests of {options.texts} texts, {options.clients} clients",
        "command": " ".join(["python", *sys.argv]), **versions(), "threads": options.threads, "machine": machine_here(),
        "megabytes": megabytes, "growth": warm[-1] / warm[0] - 1, "spread": max(warm) / min(warm) - 1,
        "requests_per_second": count * options.rounds / sum(seconds), "health_seconds": quantiles(health),
        "health_requests": len(health), "exit_code_on_sigterm": server.exitcode,
    }  # fmt: skip
    write(result, options.json, unprinted=("machine",))
    return result


if __name__ == "__main__":
    main()
