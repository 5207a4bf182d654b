"""What the doctor found."""

from __future__ import annotations

from dataclasses import dataclass, field


@dataclass
class Findings:
    """Problems, each with its fix; and notes, which are no faults."""

    problems: list[dict[str, str]] = field(default_factory=list)
    notes: list[dict[str, str]] = field(default_factory=list)

    def problem(self, what: str, fix: str) -> None:
        self.problems.append({"what": what, "fix": fix})

    def note(self, what: str, fix: str) -> None:
        self.notes.append({"what": what, "fix": fix})


def in_one_line(reason: BaseException) -> str:
    return " ".join(f"{type(reason).__name__}: {reason}".split())
