"""Reports made by hand, as data, in every state that a run can end in."""

from __future__ import annotations

from typing import Any

from tfkit_conformance.finding import Finding
from tfkit_conformance.report import CheckResult, ConformanceReport, LedgerRow

FINDING = Finding(
    "support", "A4", "query row 3 of batch row 1 sees key 17; it must not", "output", (1, 0, 3, 2), 0.5, 0.25, 1e-6,
    {"B": 1, "Q": 4, "K": 18}, 3, 40, "causal limit off by one", "from tfkit_conformance import Case, replay\n",
)  # fmt: skip
PASSED = CheckResult("contract", "A1", "shapes", "passed", 40, None, 0.25)
FAILED = CheckResult("support", "A4", "who sees whom", "failed", 40, None, 0.5)
BOUNDED = CheckResult("output", "A2", "within the bound", "passed", 40, 0.125, 1.0)
MET = LedgerRow("mask", "causal", {"float32": 4, "bfloat16": 2})
MISSED = LedgerRow("mask pair", "causal + window", {"float32": 0, "bfloat16": 3})
REFUSED = LedgerRow("mask pair", "causal + segments", {"float32": 0, "bfloat16": 0}, "no segments beside causal")


def report(
    *checks: CheckResult, findings: tuple[Finding, ...] = (), ledger: tuple[LedgerRow, ...] = (MET,), **more: Any
) -> dict[str, Any]:
    """The data of a report on `acme.flash`."""
    fields: dict[str, Any] = {
        "slot": "backend", "name": "acme.flash", "distribution": "acme", "options": {}, "device": "cpu",
        "dtypes": ("float32", "bfloat16"), "profile": "quick", "seed": 7, "versions": {"tfkit": "0.1.0", "torch": "2.13.0"},
        "seconds": 2.0, **more,
    }  # fmt: skip
    return ConformanceReport(checks=checks, findings=findings, ledger=ledger, **fields).as_data()


def right(**more: Any) -> dict[str, Any]:
    return report(PASSED, BOUNDED, grades={"float32": "A (1.00)"}, **more)


def wrong(**more: Any) -> dict[str, Any]:
    return report(PASSED, FAILED, BOUNDED, findings=(FINDING,), **more)


def incomplete(**more: Any) -> dict[str, Any]:
    return report(PASSED, BOUNDED, ledger=(MET, MISSED, REFUSED), **more)


def absent(**more: Any) -> dict[str, Any]:
    reason = "not run: there is no device cuda:3 here"
    checks = [CheckResult(name, "A1", "", "not run", note=reason) for name in ("contract", "support", "output")]
    return report(CheckResult("declaration", "A3", "", "passed", 1), *checks, ledger=(), device="cuda:3", **more)
