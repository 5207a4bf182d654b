"""Findings: what is wrong in words and in numbers, with the case that shows it."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any


class Violation(AssertionError):
    """A rule is broken. `message` says so in words ("query row 3 of batch row 1 sees key 17; it must not"); where there are
    numbers, `tensor`, `index`, `got`, `want` and `bound` give the worst element.

    Deliberately no `TfkitError`: nothing is wrong with what the user wrote, and under pytest it is a failed assertion.
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
    def share(self) -> float | None:
        """The error as a share of its bound, where there are numbers."""
        if self.got is None or self.want is None or not self.bound:
            return None
        return abs(self.got - self.want) / self.bound


class OutOfTime(Violation):
    """An example did not finish within its limit; the part gets no further example."""


class Raised(Violation):
    """The part raised an exception."""


def renamed(violation: Violation, check: str) -> Violation:
    """The same violation under the name of another check, for relations that share a function."""
    return type(violation)(
        check, violation.message, tensor=violation.tensor, index=violation.index, got=violation.got, want=violation.want,
        bound=violation.bound,
    )  # fmt: skip


class Inconclusive(Exception):
    """The case cannot decide, for instance because its scores are too large for its dtype. It is counted and never passes."""


@dataclass(frozen=True)
class Finding:
    """One violation as a report keeps it. `case` is what `--replay` runs again; `failed` of `examples` cases broke the rule;
    `looks_like` names the mutant with the same result on this case; `snippet` is Python that shows it."""

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

    def as_data(self) -> dict[str, Any]:
        """The finding as JSON has it."""
        return {**asdict(self), "index": list(self.index)}
