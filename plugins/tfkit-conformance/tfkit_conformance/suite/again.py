"""A stored case run again, alone: `tfkit conformance --replay FILE`, or `replay(...)`."""

from __future__ import annotations

from typing import Any

from tfkit import Catalogue, Diagnostic, InputError
from tfkit.plugin import AttentionBackend

from ..attention.backend_under_test import BackendUnderTest
from ..attention.case import Case
from ..attention.evaluated import Evaluated
from ..finding import Inconclusive, Violation, renamed
from ..limit import time_limit
from ..resolve import resolve
from .layers import LAYERS


def replay(
    backend: str | AttentionBackend | BackendUnderTest,
    case: Case,
    *,
    device: str = "cpu",
    check: str = "",
    options: Any = None,
    catalogue: Catalogue | None = None,
    limit: float = 60.0,
) -> str:
    """Runs one stored case again.

    Args:
        backend: a name of the catalogue, an entry, or a `BackendUnderTest`.
        case: the case, for instance `case_of(finding.case)`.
        device: "cpu", "cuda" or "cuda:1".
        check: the check to run; empty for all layers.
        options: options of the backend.
        catalogue: where names are looked up; by default all that is installed.
        limit: seconds that the case may take.

    Returns:
        "passed", "inconclusive: " with the reason, or the violation in words.

    Raises:
        InputError: the backend or the check does not exist.
    """
    subject, _ = resolve(backend, options, device, catalogue)
    try:
        with time_limit(limit):
            run_check(subject, case, check)
    except Violation as violation:
        return f"{violation.check}: {violation.message}"
    except Inconclusive as reason:
        return f"inconclusive: {reason}"
    return "passed"


def run_check(subject: BackendUnderTest, case: Case, check: str = "") -> float | None:
    """Evaluate one case by one check, or by all layers. Raises Violation, Inconclusive, InputError."""
    from ..relations import RELATIONS

    layers = [layer for layer in LAYERS if check in ("", layer.name)]
    relations = [relation for relation in RELATIONS if check == relation.label]
    if not layers and not relations:
        known = [layer.name for layer in LAYERS] + [relation.label for relation in RELATIONS]
        raise InputError(Diagnostic("TFK095", f"there is no check `{check}` to run again", f"checks: {', '.join(known)}"))
    evaluated, worst = Evaluated(subject, case), None
    for one in layers:
        share = one.evaluate(evaluated)
        worst = share if worst is None else max(worst, share or 0.0)
    for other in relations:
        try:
            worst = other.run(evaluated)
        except Violation as violation:
            raise renamed(violation, check) from violation
    return worst
