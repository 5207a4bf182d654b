"""Listens on an address until a signal ends it."""

from __future__ import annotations

import signal
import socket
from collections.abc import Callable

import uvicorn

from ..errors import Diagnostic, InputError
from .app import Server


def serve(server: Server, host: str, port: int, ready: Callable[[str], None]) -> None:
    """Answer requests until SIGTERM or SIGINT. Then no connection is taken, and all requests that were taken are answered.

    Args:
        server: what answers.
        host: a name or an address of this machine.
        port: the port; 0 for a free one.
        ready: is given the URL before the first request.

    Raises:
        InputError: the address cannot be used.
    """
    taken = _bound(host, port)
    name = f"[{host}]" if ":" in host else host
    config = uvicorn.Config(
        server.app(), log_level="warning", access_log=False, http="h11", ws="none", lifespan="on", server_header=False,
        timeout_keep_alive=30, proxy_headers=False,
    )  # fmt: skip
    # uvicorn raises the signal again when all is answered; the command then returns as usual
    before = {number: signal.signal(number, lambda *_: None) for number in (signal.SIGTERM, signal.SIGINT)}
    try:
        ready(f"http://{name}:{taken.getsockname()[1]}")
        uvicorn.Server(config).run(sockets=[taken])
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        taken.close()


def _bound(host: str, port: int) -> socket.socket:
    try:
        family, *_, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
        return socket.create_server(address[:2], family=family, backlog=2048)
    except (OSError, OverflowError, UnicodeError) as reason:
        message = f"{host} port {port} cannot be used: {getattr(reason, 'strerror', None) or reason}"
        raise InputError(Diagnostic("TFK170", message, "choose another --host or --port; --port 0 takes a free one")) from None
