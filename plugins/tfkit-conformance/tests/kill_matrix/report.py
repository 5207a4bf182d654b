"""What the kill matrix found: each mutant with the check that saw it, each correct implementation with its alarms."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class MutantRow:
    """A mutant, and the check that killed it under each seed; "" if none did."""

    name: str
    family: str
    summary: str
    killed_by: tuple[str, ...]
    seconds: float

    @property
    def killed(self) -> bool:
        return bool(self.killed_by) and all(self.killed_by)


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
class KillMatrixReport:
    """Exit code 0 when every mutant was seen under every seed and nothing correct was alarmed, else 1."""

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
        """The report as JSON has it; `kills` counts mutants by the check that saw them first."""
        kills: dict[str, int] = {}
        for row in self.mutants:
            for check in row.killed_by:
                kills[check] = kills.get(check, 0) + 1
        return {**asdict(self), "kills": kills, "survivors": [row.name for row in self.survivors], "exit_code": self.exit_code}
