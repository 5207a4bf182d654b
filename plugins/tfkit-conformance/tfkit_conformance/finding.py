"""Violations that checks raise, and findings that reports hold."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

NUMBERS = ("tensor", "index", "got", "want", "bound")


class Violation(AssertionError):
    """A broken rule. It is an AssertionError, so that pytest shows a failed assertion, and no TfkitError.

    Args:
        message: the error in words, such as "query row 3 of batch row 1 sees key 17; it must not".
        tensor: name of the wrong tensor, if the error is at an element.
        index: of the worst element.
        want: the correct value.
        bound: the largest allowed error.
    """

    def __init__(
        self,
        check: str,
        message: str,
        *,
        tensor: str = "",
        index: tuple[int, ...] = (),
        got: float | None = None,
        want: float | None = None,
        bound: float | None = None,
    ) -> None:
        super().__init__(f"{check}: {message}")
        self.check, self.message = check, message
        self.tensor, self.index = tensor, tuple(index)
        self.got, self.want, self.bound = got, want, bound

    @property
    def numbers(self) -> dict[str, Any]:
        """Tensor, index, got, want and bound, as `Violation`, `Finding` and the rows of `verify` take them."""
        return {name: getattr(self, name) for name in NUMBERS}

    @property
    def share(self) -> float | None:
        """The error over its bound; None without numbers."""
        if self.got is None or self.want is None or not self.bound:
            return None
        return abs(self.got - self.want) / self.bound


class OutOfTime(Violation):
    """An example exceeded its time limit. The part gets no further example."""


class Raised(Violation):
    """The part raised an exception."""


def renamed(violation: Violation, check: str) -> Violation:
    """The same violation with the name of another check."""
    return type(violation)(check, violation.message, **violation.numbers)


class Inconclusive(Exception):
    """A case cannot decide, for instance because its scores are too large for its dtype. It neither passes nor fails."""


@dataclass(frozen=True)
class Finding:
    """A violation in a report.

    Args:
        rule: the rule of the contract or the law, such as "A4".
        message: the error in words.
        tensor: name of the wrong tensor, if the error is at an element.
        index: of the worst element.
        want: the correct value.
        bound: the largest allowed error.
        case: the case as JSON data. `case_of` reads it, and `--replay` runs it again.
        failed: number of cases that failed.
        examples: number of cases that ran.
        looks_like: summary of a mutant that gives the same result on this case, or "".
        snippet: Python code that runs the case again.
        call: of a plain function, the calls of the case in its own form and the place of the error in them.
    """

    check: str
    rule: str
    message: str
    tensor: str = ""
    index: tuple[int, ...] = ()
    got: float | None = None
    want: float | None = None
    bound: float | None = None
    case: dict[str, Any] = field(default_factory=dict)
    failed: int = 1
    examples: int = 1
    looks_like: str = ""
    snippet: str = ""
    call: str = ""

    def as_data(self) -> dict[str, Any]:
        """The finding as JSON data."""
        return {**asdict(self), "index": list(self.index)}
