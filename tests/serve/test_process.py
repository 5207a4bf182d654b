"""A server as a process of its own."""

import http.client
import json
import resource
import signal
import socket
import subprocess
import sys
import threading
from contextlib import ExitStack, contextmanager, suppress
from urllib.parse import urlsplit

import pytest

from translation_task import sentences

pytestmark = [pytest.mark.slow, pytest.mark.xdist_group("served")]
JSON = b"Content-Type: application/json\r\n"
TEXTS = [source for source, _ in sentences(16, seed=9)]


@contextmanager
def served(run, *words, **options):
    """A server, with the address that it says. Afterwards it must end on SIGTERM, and have written nothing else."""
    words = ["-m", "tfkit", "serve", str(run), "--port", "0", "--json", *words]
    streams = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, *words], **streams, **options) as process:
        try:
            yield process, urlsplit(json.loads(process.stdout.readline())["url"])
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (0, "", "")


def test_what_is_in_the_backlog_on_sigterm_is_answered(runs):
    with ExitStack() as stack:
        process, address = stack.enter_context(served(runs["translate"]))
        process.send_signal(signal.SIGSTOP)  # so that the system alone takes the connections and what they send
        connections = []
        for text in TEXTS:
            connections.append(http.client.HTTPConnection(address.hostname, address.port, timeout=60))
            stack.callback(connections[-1].close)
            connections[-1].request("POST", "/translate", json.dumps({"texts": [text]}), {"Content-Type": "application/json"})
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        assert [each.getresponse().status for each in connections] == [200] * len(TEXTS)


def test_one_request_of_a_connection_is_answered_after_sigterm(runs):
    with ExitStack() as stack:
        process, address = stack.enter_context(served(runs["translate"]))
        process.send_signal(signal.SIGSTOP)  # so that all requests and the signal are there when it goes on
        connection = stack.enter_context(socket.create_connection((address.hostname, address.port), timeout=60))
        connection.sendall(b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n" * 300)
        process.send_signal(signal.SIGTERM)
        process.send_signal(signal.SIGCONT)
        answered = b""
        with suppress(ConnectionResetError):  # the system resets a connection that is closed before all is read
            while part := connection.recv(1 << 16):
                answered += part
        assert answered.count(b"HTTP/1.1 200") <= 1


def test_ctrl_c_while_it_answers_what_was_sent_ends_it_at_once(runs):
    handler = "import signal; signal.signal(signal.SIGINT, signal.default_int_handler)"  # a shell's background jobs ignore it
    words = f"{handler}; import sys; from tfkit.cli import main; sys.exit(main())"
    command = [sys.executable, "-c", words, "serve", str(runs["translate"]), "--port", "0", "--json"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            address = urlsplit(json.loads(process.stdout.readline())["url"])
            with socket.create_connection((address.hostname, address.port), timeout=60) as connection:
                connection.sendall(b"POST /translate HTTP/1.1\r\nHost: a\r\n" + JSON + b"Content-Length: 99\r\n\r\n{")
                process.send_signal(signal.SIGTERM)
                with suppress(OSError):
                    while True:  # until it has left its port, and waits for the rest of the body
                        socket.create_connection((address.hostname, address.port), timeout=60).close()
                for number in (signal.SIGTERM, signal.SIGINT, signal.SIGINT, signal.SIGTERM):
                    process.send_signal(number)
                out, err = process.communicate(timeout=60)
        finally:
            process.kill()
    assert (process.returncode, out, err) == (130, "", "tfkit: interrupted\n")


def test_more_clients_than_file_descriptors_leave_the_server_alive(runs):
    def few():
        resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))

    with ExitStack() as stack:
        _, address = stack.enter_context(served(runs["translate"], preexec_fn=few))
        for _ in range(200):
            stack.enter_context(socket.create_connection((address.hostname, address.port), timeout=60)).sendall(b"GET")
        connection = http.client.HTTPConnection(address.hostname, address.port, timeout=60)
        stack.callback(connection.close)
        connection.request("GET", "/health")
        assert connection.getresponse().status == 200


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
