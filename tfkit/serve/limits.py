"""What a request and a connection may hold, and for how long."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The limits of a server.

    Attributes:
        head: Bytes of the request line and the headers of a request.
        body: Bytes of the body of a request.
        bodies: Bytes of all bodies that are arriving, or of one that may be larger.
        texts: Texts of a request.
        length: Tokens of a text, special tokens included.
        characters: Characters of a text, as it is sent and as the tokeniser normalises it.
        new_tokens: Tokens that a request may generate.
        beams: Beams, hypotheses and samples of a text that a request may ask for.
        candidates: Tokens for masks that a request may ask for, those for all its masks together.
        requests: Requests that are answered at once.
        connections: Connections that are open at once.
        head_seconds: Seconds in which the request line and the headers of a request must arrive.
        seconds: Seconds in which the body of a request must arrive, and in which a client must read an answer.
    """

    head: int = 16 << 10
    body: int = 1 << 20
    bodies: int = 128 << 20
    texts: int = 64
    length: int = 1024
    characters: int = 16 * 1024
    new_tokens: int = 1024
    beams: int = 16
    candidates: int = 10_000
    requests: int = 256
    connections: int = 512
    head_seconds: float = 10.0
    seconds: float = 30.0
