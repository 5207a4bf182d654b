"""What a conformance run found, and the verdict that follows from it.

    NONCONFORMANT   a check failed: exit code 1
    INCOMPLETE      nothing failed, but something declared was not exercised or not checked: exit code 3
    CONFORMANT      everything declared for this device was exercised and is right: exit code 0

A device that is not there gives checks that are "not run"; a report of such checks alone is INCOMPLETE, never CONFORMANT.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from .finding import Finding, Violation

SUITE = 1
"""Version of the suite: it grows when a check is added or becomes stricter, and stands in every report and stored case."""

Status = Literal["passed", "failed", "inconclusive", "not applicable", "not run"]
Verdict = Literal["CONFORMANT", "NONCONFORMANT", "INCOMPLETE"]


@dataclass(frozen=True)
class CheckResult:
    """One check over all its cases: `worst` is the largest error as a share of its bound, None where the check is exact."""

    name: str
    rule: str
    summary: str
    status: Status
    examples: int = 0
    worst: float | None = None
    seconds: float = 0.0
    note: str = ""


@dataclass(frozen=True)
class LedgerRow:
    """How often one declared cell (a mask term, a pair of them, a bias, a shape) was met, dtype by dtype, without those where
    the declaration's `unsupported` excludes it. `refused` says why it is excluded in all; it then needs no examples."""

    group: str
    cell: str
    counts: dict[str, int]
    refused: str = ""

    @property
    def missing(self) -> bool:
        return not self.refused and not all(self.counts.values())


@dataclass(frozen=True)
class ConformanceReport:
    """The outcome of one run on one part of a slot: what was evaluated, with which versions, check by check."""

    slot: str
    name: str
    distribution: str
    options: dict[str, Any]
    device: str
    dtypes: tuple[str, ...]
    profile: str
    seed: int
    versions: dict[str, str]
    checks: tuple[CheckResult, ...]
    findings: tuple[Finding, ...] = ()
    ledger: tuple[LedgerRow, ...] = ()
    grades: dict[str, str] = field(default_factory=dict)
    seconds: float = 0.0
    suite: int = SUITE

    @property
    def verdict(self) -> Verdict:
        statuses = {check.status for check in self.checks}
        if "failed" in statuses:
            return "NONCONFORMANT"
        evaluated = "passed" in statuses
        if not evaluated or statuses & {"inconclusive", "not run"} or any(row.missing for row in self.ledger):
            return "INCOMPLETE"
        return "CONFORMANT"

    @property
    def exit_code(self) -> int:
        return {"CONFORMANT": 0, "NONCONFORMANT": 1, "INCOMPLETE": 3}[self.verdict]

    @property
    def missing(self) -> tuple[LedgerRow, ...]:
        """The declared cells that no example met."""
        return tuple(row for row in self.ledger if row.missing)

    def raise_for_failures(self) -> None:
        """Raise the first finding as a Violation, where there is one."""
        for found in self.findings:
            raise Violation(
                found.check, found.message, tensor=found.tensor, index=found.index, got=found.got, want=found.want,
                bound=found.bound,
            )  # fmt: skip

    def as_data(self) -> dict[str, Any]:
        """The whole report as JSON has it, verdict and exit code included."""
        return {
            **asdict(self),
            "dtypes": list(self.dtypes),
            "findings": [found.as_data() for found in self.findings],
            "checks": [asdict(check) for check in self.checks],
            "ledger": [{**asdict(row), "missing": row.missing} for row in self.ledger],
            "verdict": self.verdict,
            "exit_code": self.exit_code,
        }
