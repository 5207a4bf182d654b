"""Memory of `tfkit serve` over thousands of requests, and how long `/health` takes meanwhile.

The server is a process of its own, and so are the clients. Any translation model serves. Memory is the resident set after each
round of requests; the first round is for warming up. One more client asks for `/health`, again and again. Linux only.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import threading
import time
from pathlib import Path
from typing import Any

from apart import new_processes
from interleaved import versions

from serve import quantiles, run_clients, run_server
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
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, required=True, help="a translation model with its tokenisers, as a run has")
    parser.add_argument("--source", type=Path, required=True, help="a text per line")
    parser.add_argument("--requests", type=int, default=5000)
    parser.add_argument("--rounds", type=int, default=10, help="into which the requests are divided")
    parser.add_argument("--texts", type=int, default=4, help="of a request")
    parser.add_argument("--clients", type=int, default=16)
    parser.add_argument("--beams", type=int, default=1)
    parser.add_argument("--extra-length", type=int, default=10)
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--max-batch", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args(arguments)
    lines = options.source.read_text(encoding="utf-8").splitlines()
    count = options.requests // options.rounds
    requests = [[lines[(at + row) % len(lines)] for row in range(options.texts)] for at in range(count)]
    context = new_processes()
    processes, pipes = [], []
    for target, words in ((run_server, ("tfkit", options)), (run_clients, (options, requests))):
        mine, theirs = context.Pipe()
        processes.append(context.Process(target=target, args=(*words, theirs), daemon=True))
        processes[-1].start()
        pipes.append(mine)
    url = pipes[0].recv()
    stop, health = threading.Event(), list[float]()
    asking = threading.Thread(target=probe, args=(url, stop, health))
    asking.start()
    megabytes, seconds = [resident(processes[0].pid)], []
    for _ in range(options.rounds):
        pipes[1].send(url)
        took, *_ = pipes[1].recv()
        seconds.append(took)
        megabytes.append(resident(processes[0].pid))
    stop.set()
    asking.join()
    for process in processes:
        process.terminate()
        process.join()
    warm = megabytes[1:]
    result = {
        "title": f"{count * options.rounds} requests of {options.texts} texts, {options.clients} clients",
        "command": " ".join(["python", *sys.argv]), **versions(), "threads": options.threads, "machine": machine_here(),
        "megabytes": megabytes, "growth": warm[-1] / warm[0] - 1, "spread": max(warm) / min(warm) - 1,
        "requests_per_second": count * options.rounds / sum(seconds), "health_seconds": quantiles(health),
        "health_requests": len(health), "exit_code_on_sigterm": processes[0].exitcode,
    }  # fmt: skip
    print(json.dumps({name: value for name, value in result.items() if name != "machine"}, indent=1, allow_nan=False))
    if options.json:
        options.json.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")
    return result


if __name__ == "__main__":
    main()
