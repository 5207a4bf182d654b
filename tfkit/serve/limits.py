"""What a request may hold."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The limits of a server.

    Attributes:
        body: Bytes of the body of a request.
        texts: Texts of a request.
        length: Tokens of a text, special tokens included.
        new_tokens: Tokens that a request may generate.
        requests: Requests that are answered at once.
        seconds: Seconds in which the body of a request must arrive.
    """

    body: int = 1 << 20
    texts: int = 64
    length: int = 1024
    new_tokens: int = 1024
    requests: int = 256
    seconds: float = 30.0
