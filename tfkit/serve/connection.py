"""A connection: HTTP/1.1 of uvicorn, with limits of time and number, and with errors in the form of the server."""

from __future__ import annotations

import asyncio
import socket
import sys
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from .app import head_too_large, refused
from .limits import Limits
from .refusals import Refusal, busy

MOST_AHEAD = 64 << 10
"""Bytes that a client may send before its last request is answered."""


MOST_PIECES = 1024
"""Pieces in which a body of 1 MiB may arrive; h11 takes 30 us for each, in which nobody else is answered."""


class BoundedBody(h11.Connection):
    """The parser of a connection, which refuses a body in very many pieces, such as chunks of one byte.

    Args:
        most: The largest number of pieces.
        head: The largest number of bytes of a head.
    """

    def __init__(self, most: int, head: int) -> None:
        super().__init__(h11.SERVER, head)
        self.most, self.pieces = most, 0

    def next_event(self) -> Any:
        event = super().next_event()
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
            MOST_PIECES * max(1, limits.body >> 20), self.config.h11_max_incomplete_event_size or limits.head
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
                self.transport.abort()
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
        self.unread = self.loop.call_later(self.limits.seconds, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.unread is not None:
            self.unread.cancel()

    def send_400_response(self, msg: str) -> None:
        """uvicorn calls this while it handles the error of h11, which says more than `msg`."""
        reason = sys.exc_info()[1]
        status = reason.error_status_hint if isinstance(reason, h11.ProtocolError) else 400
        if status == 431:
            self.refuse(head_too_large(self.limits.head))
        else:
            self.refuse(Refusal(status, "malformed_http", f"this is no request of HTTP/1.1: {reason or msg}"[:300]))

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
