"""A server as a process of its own."""

import http.client
import json
import signal
import subprocess
import sys
import threading
from urllib.parse import urlsplit

import pytest

pytest.importorskip("uvicorn")
from translation_task import sentences

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("served")]
TEXTS = [source for source, _ in sentences(16, seed=9)]


def test_sigterm_answers_every_request_that_was_taken(runs):
    words = ["-m", "tfkit", "serve", str(runs["translate"]), "--port", "0", "--json", "--max-batch", "2"]
    process = subprocess.Popen([sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    connections = []
    try:
        address = urlsplit(json.loads(process.stdout.readline())["url"])

        def connection():
            connections.append(http.client.HTTPConnection(address.hostname, address.port, timeout=60))
            return connections[-1]

        first = connection()
        first.request("GET", "/ready")
        ready = first.getresponse()
        assert (ready.status, ready.read() != b"") == (200, True)
        waiting = []
        for text in TEXTS:
            waiting.append(connection())
            waiting[-1].request("POST", "/translate", json.dumps({"texts": [text] * 8}), {"Content-Type": "application/json"})
        answers = []

        def read():
            answers.extend((each.status, json.loads(each.read())) for each in (one.getresponse() for one in waiting))

        watcher = connection()
        taken = 0
        while taken < len(TEXTS):  # until all were read: what is in a socket alone was not taken yet
            watcher.request("GET", "/metrics")
            values = dict(line.rsplit(" ", 1) for line in watcher.getresponse().read().decode().splitlines() if line[0] != "#")
            done = sum(float(value) for name, value in values.items() if name.startswith("tfkit_requests_total"))
            taken = done + float(values["tfkit_running_requests"])
        process.send_signal(signal.SIGTERM)
        reader = threading.Thread(target=read)
        reader.start()
        out, err = process.communicate(timeout=60)
        reader.join(60)
    finally:
        process.kill()
        process.wait()
        for each in connections:
            each.close()
        for stream in (process.stdout, process.stderr):
            stream.close()
    assert (process.returncode, out, err) == (0, "", "")
    assert [status for status, _ in answers] == [200] * len(TEXTS)
    assert all(len(found["results"]) == 8 for _, found in answers)
