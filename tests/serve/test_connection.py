"""Clients that break rules, against a server in this process."""

import asyncio
import gc
import resource
import signal
import socket
import struct
import tracemalloc

import pytest

from echo_server import Echo, Stream, code, parsed, post, served, until
from tfkit import InputError
from tfkit.serve import listen
from tfkit.serve.app import Server
from tfkit.serve.limits import Limits

GET = b"GET /health HTTP/1.1\r\nHost: a\r\n"
CHUNKED = b"POST %s HTTP/1.1\r\nHost: a\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
TEXT = {"texts": ["a"]}


@pytest.fixture(autouse=True)
def quiet(caplog, capfd):
    """No client makes the server write a line."""
    yield
    assert [each.getMessage() for each in caplog.get_records("call")] == []
    assert capfd.readouterr().err == ""


def test_headers_that_do_not_arrive_in_time_are_refused():
    async def scenario(client, task):
        assert code(await client.all(GET)) == (408, "timeout")
        assert await client.all(b"") == b""

    served(scenario, head_seconds=0.05)


def test_headers_that_arrive_byte_by_byte_are_refused_also_after_an_answer():
    async def scenario(client, task):
        reader, writer = await client.open(GET + b"\r\n")
        await reader.readuntil(b'"alive"}')
        answer = asyncio.ensure_future(reader.readuntil(b"}}"))
        writer.write(GET + b"X: ")
        while not answer.done():
            if not writer.transport.is_closing():
                writer.write(b"a")
            await asyncio.sleep(0.001)
        assert code(await answer) == (408, "timeout")

    served(scenario, head_seconds=0.05)


def test_a_request_that_arrived_is_not_cut_off_while_it_is_computed():
    async def scenario(client, task):
        task.computing.clear()
        answer = asyncio.ensure_future(client.all(post(TEXT, "/translate", b"Connection: close")))
        await until(lambda: task.computed)
        await client.all(GET)  # the time of this one began later, and has passed
        task.computing.set()
        assert parsed(await answer) == (200, {"results": [{"text": "a"}]})

    served(scenario, head_seconds=0.05)


def test_a_body_without_end_is_cut_off_after_its_refusal():
    async def scenario(client, task):
        reader, writer = await client.open(CHUNKED % b"/none")
        assert (await reader.readuntil(b"}}")).startswith(b"HTTP/1.1 404 ")
        while client.http.server_state.connections:
            if not writer.transport.is_closing():
                writer.write(b"1000\r\n" + bytes(4096) + b"\r\n")
            await asyncio.sleep(0.001)

    served(scenario, head_seconds=0.05)


def test_a_body_in_very_many_pieces_is_refused():
    async def scenario(client, task):
        assert code(await client.all(CHUNKED % b"/translate" + b"1\r\n \r\n" * 1025)) == (400, "malformed_http")
        text = post(TEXT, "/translate").partition(b"\r\n\r\n")[2]
        chunks = b"".join(b"1\r\n%c\r\n" % letter for letter in text)
        head = CHUNKED.replace(b"Host: a", b"Host: a\r\nConnection: close") % b"/translate"
        assert parsed(await client.all(head + chunks + b"0\r\n\r\n"))[0] == 200

    served(scenario)


@pytest.mark.parametrize("path", [b"/translate", b"/health"])
def test_a_chunk_that_is_larger_than_a_body_is_refused_at_once(path):
    async def scenario(client, task):
        for size in (b"fffffffffffffffffff", b"FFFFFFFF"):
            assert code(await client.all(CHUNKED % path + size + b"\r\n")) == (413, "body_too_large")

    served(scenario)


@pytest.mark.parametrize("origin", [b"http://a", b"HTTPS://a:80", b"http://somewhere.else"])
def test_the_target_of_a_request_may_be_absolute(origin):
    async def scenario(client, task):
        end = b" HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n"
        assert parsed(await client.all(b"GET " + origin + b"/health" + end))[0] == 200
        for none in (b"", b"/none", b"?a=/health"):
            assert code(await client.all(b"GET " + origin + none + end)) == (404, "not_found")
        text = post(TEXT, "/translate").replace(b"POST /", b"POST " + origin + b"/", 1)
        assert parsed(await client.all(text.replace(b"Host: ", b"Connection: close\r\nHost: ", 1)))[0] == 200

    served(scenario)


@pytest.mark.parametrize(
    ("sent", "words"),
    [
        (CHUNKED % b"/translate" + b"ZZ\r\n", "illegal chunk header: `ZZ"),
        (CHUNKED % b"/translate" + b"1\r\n it's\r\n", "malformed chunk footer: `it`"),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nX\r\n\r\n", "illegal header line: `X`"),
    ],
)
def test_an_error_quotes_what_was_sent_in_no_notation_of_python(sent, words):
    async def scenario(client, task):
        answer = (await client.all(sent)).decode()
        assert words in answer
        assert "bytearray" not in answer

    served(scenario)


def test_an_answer_does_not_wait_for_the_acknowledgement_of_its_headers():
    async def scenario(client, task):
        await client.open()
        await until(lambda: client.http.server_state.connections)
        (found,) = client.http.server_state.connections
        assert found.transport.get_extra_info("socket").getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)

    served(scenario)


def test_connections_without_a_request_keep_nobody_out():
    async def scenario(client, task):
        opened = [await client.open() for _ in range(4)]
        await until(lambda: len(client.http.server_state.connections) == 4)
        assert await client.health() == (200, {"status": "alive"})
        assert await opened[0][0].read() == b""  # the one that waited for the longest time
        assert [reader.at_eof() for reader, _ in opened] == [True, False, False, False]

    served(scenario, connections=4)


def test_clients_that_send_a_body_slowly_keep_nobody_out():
    async def scenario(client, task):
        opened = [await client.open(post(TEXT)[:-1]) for _ in range(4)]
        await until(lambda: len(client.http.server_state.tasks) == 4)
        assert parsed(await client.all(post(TEXT, "/translate", b"Connection: close")))[0] == 200
        assert await opened[0][0].read() == b""
        assert [reader.at_eof() for reader, _ in opened] == [True, False, False, False]

    served(scenario, connections=4, requests=1)


def test_bodies_that_are_arriving_are_bounded_together():
    async def scenario(client, task):
        parts = [await client.open(post(b" " * 900, "/translate")[:-1]) for _ in range(3)]
        await until(lambda: sum(client.server.arriving.values()) == 3 * 899)
        answer = client.all(post({"texts": ["a" * 500]}, "/translate", b"Connection: close"))
        assert parsed(await answer)[0] == 200
        assert (await parts[0][0].read(13)).endswith(b"503 ")  # the one that has been arriving for the longest time
        assert len(client.server.arriving) == 2

    served(scenario, body=1000, bodies=3000)


def test_refused_bodies_are_not_kept():
    async def scenario(client, task):
        tracemalloc.start()
        gc.disable()
        try:
            for _ in range(20):
                await client.open(post(b" " * 200_000, "/translate")[:-1])
                await until(lambda: list(client.server.arriving.values())[-1:] == [199_999])
            assert tracemalloc.get_traced_memory()[0] < 3_500_000  # two of them, and what 20 connections have read
        finally:
            gc.enable()
            tracemalloc.stop()

    served(scenario, body=300_000, bodies=500_000)


class Parts(Stream):
    """Gives a part, and a hundred more at once when it is let go on."""

    def work(self, items):
        for number in range(101):
            items[0].emit("a")
            assert number or self.computing.wait(60)
        self.entered.set()
        return [None]


def test_a_client_that_goes_in_the_middle_of_a_stream_is_not_logged():
    async def scenario(client, task):
        task.computing.clear()
        task.entered.clear()
        with socket.create_connection(("127.0.0.1", client.port)) as gone:
            gone.setblocking(False)
            await asyncio.get_running_loop().sock_sendall(gone, post({"prompt": "a", "stream": True}, "/generate"))
            while b"data: " not in await asyncio.get_running_loop().sock_recv(gone, 1000):
                pass
            gone.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        task.entered.clear()
        task.computing.set()
        assert task.entered.wait(60)  # the event loop learns of the parts and of the client at once
        await until(lambda: client.server.running == 0)

    served(scenario, Parts)


def test_a_connection_beyond_the_limit_is_refused_while_all_are_answered():
    async def scenario(client, task):
        task.computing.clear()
        answers = [asyncio.ensure_future(client.all(post(TEXT, "/translate", b"Connection: close"))) for _ in range(4)]
        await until(lambda: len(task.computed) + client.server.batcher.waiting == 4)
        assert code(await client.all(b"")) == (503, "busy")
        task.computing.set()
        assert [parsed(await each)[0] for each in answers] == [200] * 4

    served(scenario, connections=4)


def test_no_file_descriptor_for_a_connection_is_said_once(capfd):
    async def scenario(client, task):
        before = resource.getrlimit(resource.RLIMIT_NOFILE)
        with socket.socket() as late, socket.socket() as next_one:
            late.setblocking(False)
            resource.setrlimit(resource.RLIMIT_NOFILE, (next_one.fileno() + 1, before[1]))
            try:
                await asyncio.get_running_loop().sock_connect(late, ("127.0.0.1", client.port))
                await until(lambda: client.http.warned)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, before)
        assert await client.health() == (200, {"status": "alive"})
        line = "tfkit serve: no connection can be taken at times: Too many open files; raise the limit with `ulimit -n`\n"
        assert capfd.readouterr().err == line

    served(scenario)


@pytest.mark.parametrize(("limit", "connections"), [(resource.RLIM_INFINITY, 512), (10**6, 512), (200, 200 - 24)])
def test_connections_leave_file_descriptors_for_the_rest(monkeypatch, limit, connections):
    monkeypatch.setattr(resource, "getrlimit", lambda kind: (limit, limit))
    with socket.socket() as taken:
        used = taken.fileno() if connections < 512 else 0
        assert listen._connections(512, taken) == connections - used
        monkeypatch.setattr(resource, "getrlimit", lambda kind: (24, 24))
        with pytest.raises(InputError, match="TFK170 this process may have 24 file descriptors open, which leaves none"):
            listen._connections(512, taken)


def test_a_signal_before_the_first_request_ends_the_server():
    server, before = Server(Echo(Limits())), signal.getsignal(signal.SIGTERM)
    try:
        listen.serve(server, "127.0.0.1", 0, lambda url: signal.raise_signal(signal.SIGTERM))
    finally:
        signal.signal(signal.SIGTERM, before)
    assert server.batcher.closed


@pytest.mark.parametrize("ahead", [b"", post(TEXT), GET], ids=["nothing", "a-request", "a-half"])
@pytest.mark.parametrize(
    ("kind", "path", "sent"),
    [
        (Echo, "/translate", {"texts": ["gone"] * 8}),
        (Stream, "/generate", {"prompt": "gone"}),
        (Stream, "/generate", {"prompt": "gone", "stream": True}),
    ],
    ids=["texts", "prompt", "stream"],
)
def test_the_work_of_clients_that_have_gone_is_dropped(kind, path, sent, ahead):
    first = {"texts": ["first"]} if kind is Echo else {"prompt": "first"}

    async def scenario(client, task):
        task.computing.clear()
        held = await client.open(post(first, path))
        await until(lambda: task.computed)
        gone = [await client.open(post(sent, path) + ahead) for _ in range(5)]
        count = len(sent.get("texts", "1"))
        await until(lambda: client.server.batcher.waiting == 5 * count)
        for _, writer in gone:
            writer.close()
        await until(lambda: client.server.batcher.waiting == 0)
        await until(lambda: client.server.running == 1)
        task.computing.set()
        await held[0].readuntil(b"}")
        assert task.computed == ["first"]

    served(scenario, kind)


def test_the_texts_of_a_client_that_has_gone_are_not_read():
    async def scenario(client, task):
        task.reading.clear()
        held = await client.open(post(TEXT))
        await until(task.entered.is_set)
        _, writer = await client.open(post({"texts": ["gone"]}))
        await until(lambda: client.server.running == 2)
        writer.close()
        await until(lambda: client.server.running == 1)
        task.reading.set()
        await held[0].readuntil(b"]}")
        assert task.computed == ["a"]

    served(scenario)


def test_others_are_answered_while_texts_are_read():
    async def scenario(client, task):
        task.reading.clear()
        answer = asyncio.ensure_future(client.all(post(TEXT, "/translate", b"Connection: close")))
        await until(task.entered.is_set)
        assert await client.health() == (200, {"status": "alive"})
        assert not answer.done()
        task.reading.set()
        assert parsed(await answer)[0] == 200

    served(scenario)


def test_a_client_that_sends_ahead_without_end_is_cut_off():
    async def scenario(client, task):
        task.computing.clear()
        _, writer = await client.open(post(TEXT))
        await until(lambda: task.computed)
        while client.http.server_state.connections:
            if not writer.transport.is_closing():
                writer.write((GET + b"\r\n") * 100)
            await asyncio.sleep(0.001)
        await until(lambda: client.server.running == 0)

    served(scenario)


def test_a_client_that_does_not_read_is_cut_off():
    async def scenario(client, task):
        task.times = 1_000_000
        reader, writer = await client.open()
        writer.transport.pause_reading()
        sent = 0
        while not sent or client.http.server_state.connections:  # until the buffers of the system are full
            if len(task.computed) == sent and not writer.transport.is_closing():
                writer.write(post(TEXT))
                sent += 1
            await asyncio.sleep(0.001)
        await until(lambda: client.server.running == 0)
        writer.transport.resume_reading()
        with pytest.raises(ConnectionResetError):  # so the kernel keeps nothing of the answer
            await reader.read()

    served(scenario, seconds=0.2)


@pytest.mark.parametrize(
    ("sent", "status", "wanted"),
    [
        (b"\x00\xff\r\n\r\n", 400, "malformed_http"),
        (b"GET /health\r\n\r\n", 400, "malformed_http"),
        (b"GET /health HTTP/1.1\r\n\r\n", 400, "malformed_http"),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n", 400, "malformed_http"),
        (b"POST /translate HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n", 400, "malformed_http"),
        (b"POST /translate HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: gzip\r\n\r\n", 501, "malformed_http"),
        (CHUNKED % b"/translate" + b"ZZ\r\n", 400, "malformed_http"),
        (CHUNKED % b"/translate" + b"1;" + b"a" * 2000, 431, "headers_too_large"),
        (GET + b"X: " + b"a" * 2000, 431, "headers_too_large"),
        (GET + b"X: " + b"a" * 2000 + b"\r\n\r\n", 431, "headers_too_large"),
        (GET + b"X: a\r\n" * 500 + b"\r\n", 431, "headers_too_large"),
        (GET + b"a:b\r\n" * 190 + b"\r\n", 431, "headers_too_large"),
        (b"GET /" + b"a" * 2000 + b" HTTP/1.1\r\nHost: a\r\n\r\n", 431, "headers_too_large"),
        (CHUNKED[:-2] % b"/translate" + b"Content-Length: 3\r\n\r\n0\r\n\r\n" + GET + b"\r\n", 400, "malformed_http"),
        (CHUNKED[:-2] % b"/health" + b"Content-Length: 3\r\n\r\n0\r\n\r\n" + GET + b"\r\n", 400, "malformed_http"),
        (b"POST /translate HTTP/1.0\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n", 400, "malformed_http"),
    ],
    ids=[
        "bytes", "http-0.9", "no-host", "two-hosts", "negative-length", "gzip", "chunk", "chunk-line", "half-of-a-long-head",
        "long-head", "many-headers", "short-headers", "long-path", "two-lengths", "two-lengths-of-a-get", "chunks-in-1.0",
    ],
)  # fmt: skip
def test_what_is_no_valid_request_is_refused_and_the_connection_closed(sent, status, wanted):
    async def scenario(client, task):
        assert code(await client.all(sent)) == (status, wanted)

    served(scenario, head=1000)


@pytest.mark.parametrize(
    "end", [b"Content-Length: 1\r\nTransfer-Encoding: chunked\r\n\r\n", b"Transfer-Encoding: chunked\r\n\r\nZ\r\n"]
)
def test_the_refusal_of_a_head_request_has_no_body(end):
    async def scenario(client, task):
        answer = await client.all(b"HEAD /health HTTP/1.1\r\nHost: a\r\n" + end)
        assert answer.endswith(b"\r\n\r\n")

    served(scenario)


def test_a_chunk_that_is_wrong_after_the_answer_ends_the_connection():
    async def scenario(client, task):
        reader, writer = await client.open(CHUNKED % b"/none")
        await reader.readuntil(b"}}")
        writer.write(b"ZZ\r\n")
        assert await reader.read() == b""

    served(scenario)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (b"GET /health HTTP/1.1\r\nHost: [\r\nConnection: close\r\n\r\n", 200),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nConnection: close, upgrade\r\nUpgrade: websocket\r\n\r\n", 200),
        (b"GET http://b/health HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 200),
        (b"GET /%00%ff HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 404),
        (b"CONNECT a:1 HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 404),
        (b"OPTIONS * HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 404),
        (b"OPTIONS /translate HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n", 405),
        (b"POST /translate/ HTTP/1.1\r\nHost: b.example\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", 404),
    ],
)
def test_unusual_requests_are_answered_in_json_and_never_redirected(sent, status):
    async def scenario(client, task):
        answer = await client.all(sent)
        assert parsed(answer)[0] == status
        assert b"location" not in answer.lower()
        assert b"b.example" not in answer

    served(scenario)
