"""The report of a conformance run, and its verdict.

    NONCONFORMANT   a check failed: exit code 1
    INCOMPLETE      nothing failed, but something declared was not exercised or not checked: exit code 3
    CONFORMANT      everything declared for this device was exercised and passed: exit code 0

On a missing device, the checks are "not run", and the report is INCOMPLETE.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from .finding import NUMBERS, Finding, Violation

SUITE = 3
"""Version of the suite, in every report and stored case. It grows when a check is added or becomes stricter."""

Status = Literal["passed", "failed", "inconclusive", "not applicable", "not run"]
Verdict = Literal["CONFORMANT", "NONCONFORMANT", "INCOMPLETE"]


@dataclass(frozen=True)
class CheckResult:
    """The result of one check over all its cases.

    Args:
        rule: the rule of the contract or the law.
        summary: what the check demands.
        status: "passed", "failed", "inconclusive", "not applicable" or "not run".
        examples: number of cases.
        worst: the largest error over its bound; None if the check is exact.
        seconds: time of the check.
        note: why the check did not run or did not decide.
    """

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
    """How many examples one cell of the declaration had: a mask term, a pair of terms, a bias, a shape, ...

    Args:
        group: kind of the cell.
        counts: examples by dtype, without the dtypes in which the entry's `unsupported` refuses the cell.
        refused: the reasons if `unsupported` refuses the cell in all dtypes. It needs no examples then.
    """

    group: str
    cell: str
    counts: dict[str, int]
    refused: str = ""

    @property
    def missing(self) -> bool:
        return not self.refused and not all(self.counts.values())


@dataclass(frozen=True)
class ConformanceReport:
    """The result of a conformance run on one part.

    Args:
        slot: of the part.
        name: of the part.
        distribution: that registers the part, "" for an entry that was passed directly.
        options: of the part.
        device: of the run.
        dtypes: that were checked.
        profile: "quick", "standard" or "deep".
        seed: of the cases.
        versions: of tfkit, torch and Python.
        findings: the first violation of each failed check.
        ledger: the examples of each cell of the declaration.
        grades: accuracy by dtype, such as "A (1.03)".
        seconds: time of the run.
        suite: version of the suite.
        function: of a plain function: `signature`, `supports`, and what the tiny calls found (`refused`, `wrong`).
    """

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
    function: dict[str, Any] = field(default_factory=dict)

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
        """The cells of the declaration without an example in some dtype."""
        return tuple(row for row in self.ledger if row.missing)

    def raise_for_failures(self) -> None:
        """Raises the first finding as a Violation, if there is one."""
        for finding in self.findings:
            raise Violation(finding.check, finding.message, **{name: getattr(finding, name) for name in NUMBERS})

    def as_data(self) -> dict[str, Any]:
        """The report as JSON data, with verdict and exit code."""
        return {
            **asdict(self),
            "dtypes": list(self.dtypes),
            "findings": [finding.as_data() for finding in self.findings],
            "checks": [asdict(check) for check in self.checks],
            "ledger": [{**asdict(row), "missing": row.missing} for row in self.ledger],
            "verdict": self.verdict,
            "exit_code": self.exit_code,
        }
