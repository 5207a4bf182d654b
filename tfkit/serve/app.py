"""The endpoints of a server, as a Starlette application."""

from __future__ import annotations

import asyncio
import json
import re
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from pydantic import ValidationError
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request as HttpRequest
from starlette.responses import JSONResponse, Response, StreamingResponse
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from ..errors import InputError
from ..errors.control_characters import shown
from ..files import parse_json
from .batcher import Batcher, Closed, QueueFull
from .limits import Limits
from .refusals import Refusal, busy
from .tasks import Generate, Item, Request, Task

PATHS = ("/translate", "/generate", "/classify", "/fill")
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024)
MAX_TYPE = 200
JSON_TYPE = re.compile(
    r"""application/json(\s*;\s*(charset="?(utf-8|us-ascii)"?(?!.*charset)|(?!charset)[\w.+-]+=("[^"\\]*"|[\w.+/-]+)))*\s*;?""",
    re.IGNORECASE | re.ASCII,
)
"""`application/json` with its parameters. The names of parameters hold no `*`: that form would name a codec (RFC 2231)."""
"""Characters of a `Content-Type`; a parser of its parameters reads digits of any number."""
MAX_FAULTS = 8
"""Faults of a request that an error names."""
END = object()


class Metrics:
    """What Prometheus reads. Labels have few values, none of them from a request."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        words: Any = {"registry": self.registry}
        self.requests = Counter("tfkit_requests", "Requests that were answered", ["path", "status"], **words)
        self.seconds = Histogram("tfkit_request_seconds", "Seconds from request to response", ["path"], **words)
        self.batches = Histogram("tfkit_batch_texts", "Texts of a batch", buckets=SIZES, **words)
        self.waiting = Gauge("tfkit_waiting_texts", "Texts that wait for the model", **words)
        self.running = Gauge("tfkit_running_requests", "Requests that are being answered", **words)


class _Stream(StreamingResponse):
    """Server-sent events. `ended` is called in every case, also if the client has gone before the first event."""

    def __init__(self, events: AsyncIterator[str], ended: Callable[[], None]) -> None:
        super().__init__(events, media_type="text/event-stream", headers={"Cache-Control": "no-store"})
        self.ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.ended()


class _Heads:
    """Refuses requests by their headers, before anything else reads them."""

    def __init__(self, app: ASGIApp, limits: Limits) -> None:
        self.app, self.limits = app, limits

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (refused(refusal, close=True) if refusal else self.app)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Refusal | None:
        size = len(scope.get("raw_path") or b"") + len(scope["query_string"])
        if size + sum(len(name) + len(value) + len(": \r\n") for name, value in scope["headers"]) > self.limits.head:
            return head_too_large(self.limits.head)
        headers = Headers(scope=scope)
        if "transfer-encoding" in headers and ("content-length" in headers or scope["http_version"] == "1.0"):
            # A proxy may have read the other length, and another request after it (request smuggling).
            message = "Transfer-Encoding belongs to HTTP/1.1, and to a request without Content-Length; send one of both"
            return Refusal(400, "malformed_http", message)
        return None


class Server:
    """Answers requests with a task.

    Args:
        task: What the model does.
        max_batch: The limit of texts of a batch.
        batch_tokens: The limit of tokens of a batch.
        max_queue: The limit of texts that wait.
        max_wait: Seconds that a batch which is not full waits.
    """

    def __init__(
        self, task: Task, *, max_batch: int = 256, batch_tokens: int = 16384, max_queue: int = 2048, max_wait: float = 0.0
    ) -> None:
        self.task, self.limits, self.metrics, self.running = task, task.limits, Metrics(), 0
        self.settings: Any = {
            "max_items": max_batch, "max_size": batch_tokens, "max_queue": max_queue, "max_wait": max_wait,
            "watch": self.metrics.batches.observe,
        }  # fmt: skip
        self.arriving: dict[asyncio.Task[bytes], int] = {}
        self.batcher: Batcher[Any, Any] | None = None
        self.reader: ThreadPoolExecutor | None = None
        self.metrics.waiting.set_function(lambda: self.batcher.waiting if self.batcher else 0)
        self.metrics.running.set_function(lambda: self.running)

    def app(self) -> Starlette:
        """The application.

        Returns:
            An ASGI application for one event loop.
        """
        routes = [Route(path, self._counted(path, self._compute), methods=["POST"]) for path in PATHS]
        routes += [Route("/health", self._health), Route("/ready", self._ready), Route("/metrics", self._metrics)]
        app = Starlette(
            routes=routes, lifespan=self._lifespan, middleware=[Middleware(_Heads, self.limits)],
            exception_handlers={HTTPException: _http_error},
        )  # fmt: skip
        app.router.redirect_slashes = False  # a redirect would name the host that the client names
        return app

    @asynccontextmanager
    async def _lifespan(self, app: Starlette) -> AsyncIterator[None]:
        self.batcher = Batcher(self.task.work, **self.settings)
        self.batcher.start()
        self.reader = ThreadPoolExecutor(1, "tfkit-serve-read")
        try:
            yield
        finally:
            await self.batcher.drain()
            self.reader.shutdown()

    async def _health(self, request: HttpRequest) -> Response:
        return JSONResponse({"status": "alive"})

    async def _ready(self, request: HttpRequest) -> Response:
        if self.batcher is None or self.batcher.closed:
            return refused(Refusal(503, "not_ready", "the server starts or stops"))
        return JSONResponse({"status": "ready", "path": self.task.path})

    async def _metrics(self, request: HttpRequest) -> Response:
        return Response(generate_latest(self.metrics.registry), media_type=CONTENT_TYPE_LATEST)

    def _counted(
        self, path: str, answer: Callable[[HttpRequest], Awaitable[Response]]
    ) -> Callable[[HttpRequest], Awaitable[Response]]:
        """An endpoint that counts its requests, and turns exceptions into typed errors."""

        async def endpoint(request: HttpRequest) -> Response:
            start = time.monotonic()
            response = await self._safely(answer, request)
            self.metrics.requests.labels(path, response.status_code).inc()
            self.metrics.seconds.labels(path).observe(time.monotonic() - start)
            return response

        return endpoint

    async def _safely(self, answer: Callable[[HttpRequest], Awaitable[Response]], request: HttpRequest) -> Response:
        try:
            return await answer(request)
        except Refusal as refusal:
            return refused(refusal)
        except ClientDisconnect:
            return refused(Refusal(400, "disconnected", "the body did not arrive"))
        except Exception as reason:
            return refused(_failed(reason))

    async def _compute(self, request: HttpRequest) -> Response:
        if request.scope["path"] != self.task.path:
            message = f"this model {self.task.verb}: send the request to {self.task.path}"
            raise Refusal(404, "wrong_endpoint", message, path=self.task.path)
        body = await self._body(request)
        if self.running >= self.limits.requests:
            raise busy(f"{self.limits.requests:,} requests are being answered")
        self.running += 1
        response = None
        try:
            response = await _unless_gone(request, self._answer(body))
            return response
        finally:
            if not isinstance(response, _Stream):
                self.running -= 1  # a stream ends later

    async def _answer(self, body: bytes) -> Response:
        # A thread reads the texts: the event loop answers others meanwhile.
        wanted, items = await asyncio.get_running_loop().run_in_executor(self.reader, self._read, body)
        if isinstance(self.task, Generate) and wanted.stream:
            return await self._stream(self.task, items[0])
        return JSONResponse(self.task.answer(await self._submit(items)))

    def _read(self, body: bytes) -> tuple[Any, list[Item]]:
        wanted = _parsed(self.task.body, body)
        try:
            return wanted, self.task.items(wanted)
        except InputError as reason:  # of a search with the numbers of the request
            raise Refusal(422, "invalid_request", f"{reason.diagnostics[0].message}; {reason.diagnostics[0].fix}") from None

    async def _submit(self, items: list[Any]) -> list[Any]:
        assert self.batcher is not None
        try:
            return await self.batcher.submit(items)
        except QueueFull:
            raise busy(f"the queue has no room for {len(items):,} more texts") from None
        except Closed:
            raise Refusal(503, "shutting_down", "the server stops; send the request to another one") from None

    async def _stream(self, task: Generate, item: Any) -> Response:
        """Server-sent events: `data: {"text": ...}` for each part, at the end `event: done` with the result."""
        loop, parts = asyncio.get_running_loop(), asyncio.Queue[Any]()

        def emit(text: str) -> None:
            loop.call_soon_threadsafe(parts.put_nowait, text)

        result = loop.create_task(self._submit([task.streamed(item, emit)]))
        result.add_done_callback(lambda done: parts.put_nowait(END))
        try:
            first = await parts.get()
            if first is END:
                result.result()  # a refusal or a failure before the first part has a status of its own
        except BaseException:
            result.cancel()
            raise

        async def events() -> AsyncIterator[str]:
            part = first
            while part is not END:
                yield f"data: {json.dumps({'text': part}, allow_nan=False)}\n\n"
                await asyncio.sleep(0)  # the connection learns here that its client has gone; asyncio logs what is written then
                part = await parts.get()
            try:
                yield f"event: done\ndata: {json.dumps(task.answer(result.result()), allow_nan=False)}\n\n"
            except Exception as reason:
                yield f"event: error\ndata: {json.dumps(_failed(reason).as_data(), allow_nan=False)}\n\n"

        def ended() -> None:
            self.running -= 1
            result.cancel()  # of a client that has gone: what still waits is not computed

        return _Stream(events(), ended)

    async def _body(self, request: HttpRequest) -> bytes:
        written = ",".join(request.headers.getlist("content-type"))
        if len(written) > MAX_TYPE or not JSON_TYPE.fullmatch(written.strip()):
            raise Refusal(415, "unsupported_media_type", "send JSON in UTF-8 with `Content-Type: application/json`")
        if any(encoding.lower() != "identity" for encoding in request.headers.getlist("content-encoding")):
            raise Refusal(415, "unsupported_media_type", "send the body without `Content-Encoding`; no compression is read")
        limit, content_length = self.limits.body, request.headers.get("content-length", "")
        too_large = body_too_large(limit)
        if content_length.isascii() and content_length.isdigit() and (len(content_length) > 18 or int(content_length) > limit):
            raise too_large

        async def read() -> bytes:
            body = bytearray()
            try:
                async for part in request.stream():
                    body += part
                    if len(body) > limit:
                        raise too_large
                    self._arrived(reading, len(body))
                return bytes(body)
            finally:
                body.clear()  # the traceback of a refusal holds it until Python collects cycles

        reading = asyncio.create_task(read())
        try:
            await asyncio.wait((reading,), timeout=self.limits.seconds)
            if not reading.done():
                raise Refusal(408, "timeout", f"the body did not arrive in {self.limits.seconds:g} s")
            if reading.cancelled():
                raise busy("the bodies of other requests are larger together than the server holds")
            return reading.result()
        finally:
            reading.cancel()
            self.arriving.pop(reading, None)

    def _arrived(self, reading: asyncio.Task[bytes], size: int) -> None:
        """Count what has arrived of a body. If all are too large together, those end that have been arriving for the longest
        time: slow clients keep nobody out."""
        self.arriving[reading] = size
        while len(self.arriving) > 1 and sum(self.arriving.values()) > max(self.limits.bodies, self.limits.body):
            oldest = next(other for other in self.arriving if other is not reading)
            del self.arriving[oldest]
            oldest.cancel()


async def _unless_gone(request: HttpRequest, answer: Coroutine[Any, Any, Response]) -> Response:
    """The answer. If the client goes first, the work on it is dropped, and ClientDisconnect is raised."""

    async def gone() -> None:
        while (await request.receive())["type"] != "http.disconnect":
            pass

    work, watch = asyncio.create_task(answer), asyncio.create_task(gone())
    try:
        await asyncio.wait((work, watch), return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            raise ClientDisconnect
        return work.result()
    finally:
        work.cancel()
        watch.cancel()
        await asyncio.gather(work, watch, return_exceptions=True)


def _parsed(kind: type[Request], body: bytes) -> Any:
    try:
        parsed = parse_json(body)
    except ValueError as wrong:
        raise Refusal(400, "malformed_json", str(wrong)[:300]) from None
    if not isinstance(parsed, dict):
        raise Refusal(422, "invalid_request", 'the body is no object of JSON, such as {"texts": ["..."]}')
    # Each unknown key is an error. With more keys than fields there is one among the first.
    parsed = dict(islice(parsed.items(), len(kind.model_fields) + 1))
    try:
        return kind.model_validate(parsed)
    except ValidationError as wrong:
        errors = wrong.errors(include_url=False, include_context=False, include_input=False)
        places = [shown(".".join(map(str, error["loc"]))[:200]) for error in errors[:MAX_FAULTS]]
        fields = [{"field": place, "message": error["msg"]} for place, error in zip(places, errors, strict=False)]
        message = "; ".join(f"{field['field']}: {field['message']}" for field in fields)
        raise Refusal(422, "invalid_request", message, fields=fields) from None


def refused(refusal: Refusal, close: bool = False) -> Response:
    """The response for a refusal.

    Args:
        refusal: What is wrong.
        close: Whether the connection ends with it.

    Returns:
        A response in JSON.
    """
    headers = {"Retry-After": "1"} if refusal.status == 503 else {}
    return JSONResponse(refusal.as_data(), refusal.status, {**headers, **({"Connection": "close"} if close else {})})


def body_too_large(limit: int) -> Refusal:
    """The refusal of a body.

    Args:
        limit: Its bytes at most.

    Returns:
        The refusal.
    """
    return Refusal(413, "body_too_large", f"the body has more than {limit:,} bytes; send less", limit=limit)


def head_too_large(limit: int) -> Refusal:
    """The refusal of a request line with headers.

    Args:
        limit: Their bytes at most.

    Returns:
        The refusal.
    """
    message = f"the request line and the headers, or a line of a chunked body, have more than {limit:,} bytes; send less"
    return Refusal(431, "headers_too_large", message, limit=limit)


def _failed(reason: BaseException) -> Refusal:
    """The error of an unexpected exception. What it says goes to standard error, not to the client."""
    print(f"tfkit serve: a batch failed: {type(reason).__name__}: {' '.join(str(reason).split())}", file=sys.stderr)
    return Refusal(500, "failed", "the model could not compute this; the server's standard error says why")


async def _http_error(request: HttpRequest, error: Exception) -> Response:
    """The typed error for a wrong path or a wrong method."""
    assert isinstance(error, HTTPException)
    codes = {404: "not_found", 405: "method_not_allowed"}
    message = f"{error.detail}; there are POST {', '.join(PATHS)} and GET /health, /ready, /metrics"
    refusal = Refusal(error.status_code, codes.get(error.status_code, "http_error"), message)
    return JSONResponse(refusal.as_data(), error.status_code, error.headers)
