"""A connection: HTTP/1.1 of uvicorn, with limits of time and number, and with errors in the form of the server."""

from __future__ import annotations

import asyncio
import re
import socket
import struct
import sys
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .app import body_too_large, head_too_large, refused
from .limits import Limits
from .refusals import Refusal, busy

MOST_AHEAD = 64 << 10
"""Bytes that a client may send before its last request is answered."""


MOST_PIECES = 1024
"""Pieces in which a body of 1 MiB may arrive; h11 takes 30 us for each, in which nobody else is answered."""


ORIGIN = re.compile(rb"https?://[^/?]+", re.IGNORECASE)
"""What the target of a request has before its path in the absolute form, which a server must take (RFC 9112, 3.2.2)."""
QUOTED = re.compile(r"""bytearray\(b(['"])(.*?)\1\)|\bb(['"])(.*?)\3""")
"""Bytes of a client as Python writes them in the errors of h11."""


class BoundedBody(h11.Connection):
    """The parser of a connection, which refuses a body in very many pieces, such as chunks of one byte, and a chunk that is
    larger than a body. The targets of its requests have no origin.

    Args:
        most: The largest number of pieces.
        head: The largest number of bytes of a head.
        body: The largest number of bytes of a body.
    """

    def __init__(self, most: int, head: int, body: int) -> None:
        super().__init__(h11.SERVER, head)
        self.most, self.body, self.pieces = most, body, 0

    def next_event(self) -> Any:
        event = super().next_event()
        if isinstance(event, h11.Request) and (origin := ORIGIN.match(event.target)):
            path = event.target[origin.end() :]
            target = path if path.startswith(b"/") else b"/" + path
            event = h11.Request(
                method=event.method, headers=list(event.headers), target=target, http_version=event.http_version
            )
        if getattr(self._reader, "_bytes_in_chunk", 0) > self.body:  # h11 says it when all bytes are there
            raise h11.RemoteProtocolError("a chunk is larger than a body", error_status_hint=413)
        self.pieces = self.pieces + 1 if isinstance(event, h11.Data) else 0 if isinstance(event, h11.Request) else self.pieces
        if self.pieces > self.most:
            raise h11.RemoteProtocolError(f"the body arrives in more than {self.most:,} pieces")
        return event


@dataclass
class Connections:
    """What the connections of a server share.

    Args:
        waiting: Those that wait for their client, the one that waits for the longest time first.
        stopping: Whether the server was asked to stop.
    """

    waiting: dict[Connection, None] = field(default_factory=dict)
    stopping: bool = False


class Connection(H11Protocol):
    """A connection.

    Args:
        limits: The limits of the server.
        shared: What the connections of the server share.
        **given: What uvicorn gives to a connection.
    """

    def __init__(self, limits: Limits, shared: Connections, **arguments: Any) -> None:
        super().__init__(**arguments)
        self.limits, self.shared, self.waiting = limits, shared, shared.waiting
        self.conn = BoundedBody(
            MOST_PIECES * max(1, limits.body >> 20),
            self.config.h11_max_incomplete_event_size or limits.head,
            limits.body,
        )
        self.head: asyncio.TimerHandle | None = None
        self.unread: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        # asyncio does this only where the socket says that it is one of TCP. Without it, the body of an answer waits 40 ms.
        transport.get_extra_info("socket").setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        transport.set_write_buffer_limits(0)  # `pause_writing` is then called whenever the client does not read
        self._wait_for_head()
        if len(self.connections) > self.limits.connections:
            # A client that holds many connections without a whole request keeps nobody out.
            oldest = next(iter(self.waiting))
            del self.waiting[oldest]
            if oldest is self:
                self.refuse(busy(f"{self.limits.connections:,} connections are open"))
            else:
                oldest.transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self.waiting.pop(self, None)
        for timer in (self.head, self.unread):
            if timer is not None:
                timer.cancel()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self._waits():
            if self.head is None:
                self._wait_for_head()
            return
        if self.head is not None:
            self.head.cancel()
            self.head = None
        if self.cycle.more_body:
            return
        self.waiting.pop(self, None)
        if self.flow.read_paused:
            # uvicorn reads no further than the next request. Then it would not see that the client has gone.
            if len(self.conn.trailing_data[0]) > MOST_AHEAD:
                self._reset()
            else:
                self.flow.resume_reading()

    def handle_events(self) -> None:
        super().handle_events()
        if self.shared.stopping and self.cycle is not None:
            self.cycle.keep_alive = False  # else a client could send requests ahead that take minutes to answer

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if self._waits():
            self.waiting[self] = None

    def pause_writing(self) -> None:
        super().pause_writing()
        self.unread = self.loop.call_later(self.limits.seconds, self._reset)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.unread is not None:
            self.unread.cancel()

    def _reset(self) -> None:
        """End the connection by a reset. Otherwise the kernel keeps what the client has not read: megabytes, for minutes."""
        self.transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.transport.abort()

    def send_400_response(self, msg: str) -> None:
        """uvicorn calls this while it handles the error of h11, which says more than `msg`."""
        reason = sys.exc_info()[1]
        status = reason.error_status_hint if isinstance(reason, h11.ProtocolError) else 400
        if status == 431:
            self.refuse(head_too_large(self.limits.head))
        elif status == 413:
            self.refuse(body_too_large(self.limits.body))
        else:
            words = QUOTED.sub(lambda quoted: f"`{quoted[2] or quoted[4] or ''}`", str(reason or msg))
            self.refuse(Refusal(status, "malformed_http", f"this is no request of HTTP/1.1: {words}"[:300]))

    def refuse(self, refusal: Refusal) -> None:
        """Answer with an error, unless an answer has started, and close.

        Args:
            refusal: The error.
        """
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            answer = refused(refusal, close=True)
            head = self.conn.our_state is h11.SEND_RESPONSE and self.scope is not None and self.scope["method"] == "HEAD"
            reason = HTTPStatus(refusal.status).phrase.encode()
            start = h11.Response(status_code=refusal.status, headers=answer.raw_headers, reason=reason)
            for event in (start, h11.Data(data=b"" if head else bytes(answer.body)), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None:
            self.cycle.disconnected = True  # the request that is being answered has no other answer
        self.transport.close()

    def _waits(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete

    def _wait_for_head(self) -> None:
        self.waiting[self] = None
        self.head = self.loop.call_later(self.limits.head_seconds, self._head_is_late)

    def _head_is_late(self) -> None:
        if self.conn.our_state is h11.IDLE and self.conn.trailing_data[0]:
            seconds = self.limits.head_seconds
            self.refuse(Refusal(408, "timeout", f"the headers of a request did not arrive in {seconds:g} s"))
        else:
            self.transport.close()
