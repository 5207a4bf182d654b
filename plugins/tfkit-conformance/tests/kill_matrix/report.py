"""What the self-test found: each seeded fault with the check that saw it, each correct implementation with its alarms."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class MutantRow:
    """A fault, and the check that saw it under each seed; "" where none did."""

    name: str
    family: str
    summary: str
    seen_by: tuple[str, ...]
    seconds: float

    @property
    def killed(self) -> bool:
        return bool(self.seen_by) and all(self.seen_by)


@dataclass(frozen=True)
class CorrectKernelRow:
    """A correct implementation: its runs, the alarms, and the largest error as a share of its bound."""

    name: str
    summary: str
    examples: int
    alarms: tuple[str, ...]
    worst: float
    inconclusive: int
    seconds: float


@dataclass(frozen=True)
class SelftestReport:
    """Exit code 0 when every fault was seen under every seed and nothing correct was alarmed, else 1."""

    profile: str
    seeds: tuple[int, ...]
    mutants: tuple[MutantRow, ...]
    correct_kernels: tuple[CorrectKernelRow, ...]
    seconds: float

    @property
    def survivors(self) -> tuple[MutantRow, ...]:
        return tuple(row for row in self.mutants if not row.killed)

    @property
    def alarmed(self) -> tuple[CorrectKernelRow, ...]:
        return tuple(row for row in self.correct_kernels if row.alarms)

    @property
    def exit_code(self) -> int:
        return 1 if self.survivors or self.alarmed else 0

    def as_data(self) -> dict[str, Any]:
        """The report as JSON has it; `kills` counts faults by the check that saw them first."""
        kills: dict[str, int] = {}
        for row in self.mutants:
            for check in row.seen_by:
                kills[check] = kills.get(check, 0) + 1
        return {**asdict(self), "kills": kills, "survivors": [row.name for row in self.survivors], "exit_code": self.exit_code}
