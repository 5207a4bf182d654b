"""`tfkit serve` under load on the loopback interface, against translating the same texts offline, and against CTranslate2 in
the same server: the same endpoints, batcher, tokenisers, weights and search.

Each server is a process of its own. The clients are a process with a fixed number of connections; each sends its next request
when the last one was answered. The rivals take turns. Any translation model of the paper's shape serves, with its tokenisers.
"""

from __future__ import annotations

import argparse
import http.client
import json
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import translate_peers as peers
from apart import new_processes
from interleaved import versions

from tfkit.doctor.installation import machine_here
from tfkit.generate import PowerLengthPenalty, Search
from tfkit.serve.app import Server
from tfkit.serve.limits import Limits
from tfkit.serve.listen import serve
from tfkit.serve.tasks import SourceText, Translate, load_task

MOST = 512
LIMITS = Limits(texts=64, requests=256)


def loaded(options: argparse.Namespace) -> Translate:
    torch.set_num_threads(options.threads)
    search = (
        Search(kind="greedy", extra_length=options.extra_length)
        if options.beams == 1
        else Search(
            beams=options.beams, length_penalty=PowerLengthPenalty(1.0), extra_length=options.extra_length,
            early_stopping=options.early_stopping or "never",
        )
    )  # fmt: skip
    task = load_task(options.model, LIMITS, search, batch_tokens=options.batch_tokens, workers=options.threads)
    assert isinstance(task, Translate)
    return task


class CTranslate2(Translate):
    """The same endpoint with another engine: the batcher takes any function of a batch."""

    def __init__(self, ours: Translate, options: argparse.Namespace) -> None:
        super().__init__(ours.translator, ours.limits)
        self.options = options
        with tempfile.TemporaryDirectory() as directory:
            place = Path(directory) / "model"
            self.peer = peers.ctranslate2(ours.model, place, MOST, options.threads, options.threads)
        self.words = [peers.token(number) for number in range(ours.model.plan.inputs["target"].vocab_size)]
        self.numbers = {word: number for number, word in enumerate(self.words)}

    def work(self, items: Sequence[SourceText]) -> list[Any]:
        source, target = (self.translator.tokenisers[name] for name in ("source", "target"))
        ids = [source.source_frame(each) for each in source.encode([item.text for item in items])]
        order = sorted(range(len(ids)), key=lambda row: -len(ids[row]))
        found: list[Any] = [None] * len(ids)
        rows = max(1, self.options.batch_tokens // self.options.beams)
        made = self.peer.translate_batch(
            [[self.words[one] for one in ids[row]] for row in order], beam_size=self.options.beams, length_penalty=1.0,
            max_batch_size=rows, batch_type="tokens", return_scores=True,
            max_decoding_length=max(map(len, ids)) + self.options.extra_length,
        )  # fmt: skip
        for row, each in zip(order, made, strict=True):
            text = target.decode([self.numbers[word] for word in each.hypotheses[0]])
            found[row] = {"text": " ".join(text.split()), "score": each.scores[0]}
        return found


ENGINES = {"tfkit": lambda ours, options: ours, "CTranslate2": CTranslate2}


def run_server(engine: str, options: argparse.Namespace, said: Any) -> None:
    task = ENGINES[engine](loaded(options), options)
    server = Server(task, max_batch=options.max_batch, batch_tokens=10**9)
    serve(server, "127.0.0.1", 0, said.send)


def run_offline(engine: str, options: argparse.Namespace, lines: list[str], connection: Any) -> None:
    """All texts in one call, each time one is asked for."""
    task = ENGINES[engine](loaded(options), options)
    while connection.recv():
        start = time.perf_counter()
        texts = [each["text"] for each in task.work([SourceText(line) for line in lines])]
        connection.send((time.perf_counter() - start, texts))


def run_clients(options: argparse.Namespace, requests: list[list[str]], connection: Any) -> None:
    """All requests by a fixed number of clients, each time a URL is given: seconds, those of each request, and the texts."""
    while url := connection.recv():
        host, port = url.removeprefix("http://").split(":")
        todo, lock = iter(enumerate(requests)), threading.Lock()
        seconds, texts = [0.0] * len(requests), [[] for _ in requests]

        def client(host=host, port=port, todo=todo, lock=lock, seconds=seconds, texts=texts) -> None:
            line = http.client.HTTPConnection(host, int(port), timeout=300)
            while True:
                with lock:
                    number, request = next(todo, (None, None))
                if number is None:
                    return line.close()
                start = time.perf_counter()
                line.request(
                    "POST", "/translate", json.dumps({"texts": request}, allow_nan=False), {"Content-Type": "application/json"}
                )
                response = line.getresponse()
                body = json.loads(response.read())
                assert response.status == 200, body
                seconds[number] = time.perf_counter() - start
                texts[number] = [each["text"] for each in body["results"]]

        threads = [threading.Thread(target=client) for _ in range(options.clients)]
        start = time.perf_counter()
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        connection.send((time.perf_counter() - start, seconds, [text for each in texts for text in each]))


def served_model(about: str | None, texts: int, clients: int, beams: int) -> argparse.ArgumentParser:
    """The options of a server of one model and its clients, with these defaults."""
    parser = argparse.ArgumentParser(description=about)
    parser.add_argument("--model", type=Path, required=True, help="a translation model with its tokenisers, as a run has")
    parser.add_argument("--source", type=Path, required=True, help="a text per line")
    parser.add_argument("--texts", type=int, default=texts, help="of a request")
    parser.add_argument("--clients", type=int, default=clients)
    parser.add_argument("--beams", type=int, default=beams)
    parser.add_argument("--extra-length", type=int, default=10)
    parser.add_argument(
        "--early-stopping", action="store_true", help="tfkit stops at as many results as beams, as CTranslate2 always does"
    )
    parser.add_argument("--batch-tokens", type=int, default=4096)
    parser.add_argument("--max-batch", type=int, default=256)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", type=Path)
    return parser


def started(target: Any, *words: Any) -> tuple[Any, Any]:
    """A process that runs a function, and the connection that is its last argument."""
    context = new_processes()
    mine, theirs = context.Pipe()
    process = context.Process(target=target, args=(*words, theirs), daemon=True)
    process.start()
    return process, mine


def write(result: dict[str, Any], file: Path | None, unprinted: Sequence[str]) -> None:
    """Prints a result without some of its keys, and writes it with all."""
    print(json.dumps({name: value for name, value in result.items() if name not in unprinted}, indent=1, allow_nan=False))
    if file:
        file.write_text(json.dumps(result, indent=1, allow_nan=False) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> dict[str, Any]:
    parser = served_model(__doc__, texts=8, clients=32, beams=5)
    parser.add_argument("--sentences", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args(arguments)
    lines = options.source.read_text(encoding="utf-8").splitlines()[: options.sentences]
    requests = [lines[at : at + options.texts] for at in range(0, len(lines), options.texts)]
    processes, pipes = [], {}

    def start(name: str, target: Any, *words: Any) -> None:
        process, pipes[name] = started(target, *words)
        processes.append(process)

    start("clients", run_clients, options, requests)
    for engine in ENGINES:
        start(f"{engine} offline", run_offline, engine, options, lines)
        start(f"{engine} served", run_server, engine, options)
    urls = {f"{engine} served": pipes[f"{engine} served"].recv() for engine in ENGINES}
    seconds: dict[str, list[float]] = {name: [] for engine in ENGINES for name in (f"{engine} offline", f"{engine} served")}
    latencies: dict[str, list[float]] = {name: [] for name in urls}
    texts: dict[str, list[str]] = {}
    for round_ in range(options.rounds + 1):  # the first one warms up
        for name in seconds:
            pipe = pipes["clients"] if name in urls else pipes[name]
            pipe.send(urls.get(name, True))
            took, *each, texts[name] = pipe.recv()
            if round_:
                seconds[name].append(took)
                for found in each:
                    latencies[name].extend(found)
    for process in processes:
        process.terminate()
        process.join()
    rates = {name: len(lines) / statistics.median(each) for name, each in seconds.items()}
    result = {
        "title": f"{len(lines)} texts, {options.texts} a request, {options.clients} clients, {options.beams} beams",
        "command": " ".join(["python", *sys.argv]), **versions(), "threads": options.threads, "machine": machine_here(),
        "texts_per_second": rates,
        "served_relative_to_offline": {name: rates[f"{name} served"] / rates[f"{name} offline"] for name in ENGINES},
        "tfkit_relative_to_ctranslate2_served": rates["tfkit served"] / rates["CTranslate2 served"],
        "latency_seconds": {name: quantiles(each) for name, each in latencies.items()},
        "served_texts_equal_offline": {name: texts[f"{name} served"] == texts[f"{name} offline"] for name in ENGINES},
        "share_of_ctranslate2_texts_equal": sum(map(str.__eq__, *(texts[f"{name} served"] for name in ENGINES))) / len(lines),
        "exit_codes_on_sigterm": [process.exitcode for process in processes[2::2]],
        "seconds": seconds,
    }  # fmt: skip
    write(result, options.json, unprinted=("seconds", "machine"))
    return result


def quantiles(seconds: list[float]) -> dict[str, float]:
    ranked = sorted(seconds)
    return {f"p{part}": ranked[min(len(ranked) - 1, len(ranked) * part // 100)] for part in (50, 99)}


if __name__ == "__main__":
    main()
