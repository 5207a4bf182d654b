"""Listens on an address until a signal ends it."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from types import FrameType
from typing import Any

import uvicorn

from ..errors import Diagnostic, InputError
from .app import Server
from .connection import Connection, Connections
from .limits import Limits

BACKLOG = 2048
"""Connections that the system keeps until they are accepted."""
ACCEPTED = 4
"""Connections that are accepted in a turn of the event loop. One beyond the limit is closed some turns later."""
SPARE = 24
"""File descriptors for those connections, and for the event loop and files."""


class HttpServer(uvicorn.Server):
    """uvicorn for a server.

    Args:
        server: What answers.
        limits: The limits of connections; those of the server unless given.
    """

    def __init__(self, server: Server, limits: Limits | None = None) -> None:
        limits = limits or server.limits
        self.shared = Connections()
        connection: Any = partial(Connection, limits, self.shared)
        super().__init__(
            uvicorn.Config(
                server.app(), log_level="error", access_log=False, loop="asyncio", http=connection, ws="none", lifespan="on",
                server_header=False, timeout_keep_alive=30, proxy_headers=False, backlog=ACCEPTED,
                h11_max_incomplete_event_size=limits.head,
            )
        )  # fmt: skip
        self.warned = False

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        if self.should_exit and sig == signal.SIGINT:
            os.write(2, b"tfkit: interrupted\n")
            os._exit(130)  # a task that is cancelled would print where it was
        self.shared.stopping = self.should_exit = True

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._accept_failed)
        await super().startup(sockets)
        for listener in sockets or []:
            listener.listen(BACKLOG)  # asyncio takes one number for this and for what it accepts in a turn

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # What was sent before the signal is in the backlog or in the buffer of a socket. These turns of the loop read it.
        for _ in range(BACKLOG // ACCEPTED + SPARE):
            await asyncio.sleep(0)
        await super().shutdown(sockets)

    def _accept_failed(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """asyncio tries again each second, and says this as often as it accepts connections in a turn."""
        if not (isinstance(context.get("exception"), OSError) and "accept" in context["message"]):
            loop.default_exception_handler(context)
        elif not self.warned:
            self.warned = True
            message = f"no connection can be taken at times: {context['exception'].strerror}; raise the limit with `ulimit -n`"
            print(f"tfkit serve: {message}", file=sys.stderr)


def serve(server: Server, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Answer requests until SIGTERM or SIGINT. Then no connection is taken, and all requests that were sent are answered. A
    SIGINT after that ends the process at once, with exit code 130.

    Args:
        server: what answers.
        host: a name or an address of this machine.
        port: the port; 0 for a free one.
        ready: is given the URL before the first request.

    Raises:
        InputError: the address cannot be used, or the process may not open enough files.
    """
    taken = _bound(host, port)
    name = f"[{host}]" if ":" in host else host
    try:
        http = HttpServer(server, replace(server.limits, connections=_connections(server.limits.connections, taken)))
        before = signal.signal(signal.SIGINT, http.handle_exit)
        signal.signal(signal.SIGTERM, http.handle_exit)  # also while the process ends, which one after another would kill
        try:
            ready(f"http://{name}:{taken.getsockname()[1]}")
            http.run(sockets=[taken])
        finally:
            signal.signal(signal.SIGINT, before)
    finally:
        taken.close()


def _connections(wanted: int, taken: socket.socket) -> int:
    """How many connections may be open. The number of a new file descriptor is the lowest one that is free."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return wanted
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    room = wanted if limit == resource.RLIM_INFINITY else limit - taken.fileno() - SPARE
    if room < 1:
        message = f"this process may have {limit} file descriptors open, which leaves none for connections"
        raise InputError(Diagnostic("TFK170", message, f"raise the limit with `ulimit -n {limit + wanted}`"))
    return min(wanted, room)


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=BACKLOG)
    except (OSError, OverflowError, UnicodeError) as reason:
        message = f"{host} port {port} cannot be used: {getattr(reason, 'strerror', None) or reason}"
        raise InputError(Diagnostic("TFK170", message, "choose another --host or --port; --port 0 takes a free one")) from None
