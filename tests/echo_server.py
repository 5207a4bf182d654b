"""A task without a model, whose reading and computing a test holds, and a server of it in this process."""

import asyncio
import json
import socket
import threading

from tfkit.serve.app import Server
from tfkit.serve.limits import Limits
from tfkit.serve.listen import HttpServer
from tfkit.serve.tasks import Generate, Prompt, Task, Texts, Wanted


class Echo(Task):
    """Answers with the texts, `times` over. `reading` and `computing` are held while they are clear."""

    path, verb, body = "/translate", "translates", Texts

    def __init__(self, limits):
        Task.__init__(self, limits)
        self.times = 1
        self.reading, self.computing, self.entered = threading.Event(), threading.Event(), threading.Event()
        self.reading.set()
        self.computing.set()
        self.computed = []

    def items(self, request):
        self.entered.set()
        assert self.reading.wait(60)
        return [(text, None, 1) for text in request.texts]

    def work(self, items):
        self.computed.extend(items)
        assert self.computing.wait(60)
        return [{"text": item * self.times} for item in items]


class Stream(Echo, Generate):
    """The same for a prompt."""

    path, verb, body = "/generate", "generates", Prompt

    def items(self, request):
        return [(Wanted(request.prompt, None), None, 1)]

    def work(self, items):
        return super().work([each.prompt for each in items])


class Client:
    """Sends bytes to the server, and reads its answers."""

    def __init__(self, port, server, http):
        self.port, self.server, self.http = port, server, http
        self.opened = []

    async def open(self, sent=b""):
        reader, writer = await asyncio.open_connection("127.0.0.1", self.port)
        self.opened.append(writer)
        writer.write(sent)
        return reader, writer

    async def all(self, sent):
        """All that is answered until the server closes."""
        reader, _ = await self.open(sent)
        return await reader.read()

    async def health(self):
        return parsed(await self.all(b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"))


def post(body, path="/translate", *headers):
    body = body if isinstance(body, bytes) else json.dumps(body).encode()
    lines = [f"POST {path} HTTP/1.1".encode(), b"Host: a", b"Content-Type: application/json", *headers]
    return b"\r\n".join([*lines, b"Content-Length: %d" % len(body), b"", body])


def parsed(answer):
    """The status and the JSON data of an answer."""
    head, _, body = answer.partition(b"\r\n\r\n")
    assert b"content-type: application/json" in head.lower(), answer
    return int(head.split()[1]), json.loads(body)


def code(answer):
    """The status and the code of an error."""
    status, data = parsed(answer)
    assert data["error"]["message"]
    return status, data["error"]["code"]


async def until(condition):
    while not condition():
        await asyncio.sleep(0.001)


def served(scenario, kind=Echo, **limits):
    """Run `scenario(client, task)` with a server in the same event loop."""

    async def run():
        task = kind(Limits(**limits))
        server = Server(task)
        http = HttpServer(server)
        with socket.create_server(("127.0.0.1", 0)) as listening:
            running = asyncio.create_task(http.serve([listening]))
            await until(lambda: http.started)
            client = Client(listening.getsockname()[1], server, http)
            try:
                await scenario(client, task)
            finally:
                for writer in client.opened:
                    writer.transport.abort()
                task.reading.set()
                task.computing.set()
                http.should_exit = True
                await running

    asyncio.run(asyncio.wait_for(run(), 60))
