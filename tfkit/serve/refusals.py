"""Requests that are refused, as typed errors."""

from __future__ import annotations

from typing import Any

from ..errors.control_characters import shown


class Refusal(Exception):
    """A request is refused.

    Args:
        status: the HTTP status.
        code: the stable name of the reason.
        message: what is wrong, with the numbers and the fix.
        **details: further fields of the error.
    """

    def __init__(self, status: int, code: str, message: str, **details: Any) -> None:
        super().__init__(message)
        # It may quote the client.
        self.status, self.code, self.message, self.details = status, code, shown(message), details

    def as_data(self) -> dict[str, Any]:
        """The body of the response.

        Returns:
            `{"error": {"code": ..., "message": ..., ...}}`.
        """
        return {"error": {"code": self.code, "message": self.message, **self.details}}


def busy(message: str) -> Refusal:
    """The server has as much work as it may have.

    Args:
        message: which limit is reached.

    Returns:
        A refusal that asks the client to try again.
    """
    return Refusal(503, "busy", f"{message}; try again later")
