"""A stored case run again, alone: `tfkit conformance --replay FILE`, or `replay(...)`."""

from __future__ import annotations

from typing import Any

from tfkit.attention.backend import AttentionBackend
from tfkit.catalogue import Catalogue
from tfkit.errors import Diagnostic, InputError

from ..attention.case import Case
from ..attention.evaluated import Evaluated
from ..attention.subject import BackendUnderTest
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
    """Evaluate one case: by every layer, or by one check. Gives "passed", "inconclusive: why", or what is wrong in words.

    Raises InputError for a backend or a check that does not exist.
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
    relations = [relation for relation in RELATIONS if check == f"{relation.number} {relation.name}"]
    if not layers and not relations:
        known = [layer.name for layer in LAYERS] + [f"{relation.number} {relation.name}" for relation in RELATIONS]
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
