"""A stored case run again, alone: `tfkit conformance --replay FILE`, or `replay(...)`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain, combinations
from typing import Any, cast

from tfkit import Catalogue, Diagnostic, InputError
from tfkit.inspection import SCORE_SETTINGS
from tfkit.plugin import AttentionBackend

from ..attention.backend_under_test import BackendUnderTest
from ..attention.case import Case
from ..attention.case_data import invalid_fields
from ..attention.evaluated import Evaluated
from ..finding import Inconclusive, Violation, renamed
from ..limit import time_limit
from ..resolve import resolve
from .call_maker import CHECK as GUIDED
from .guided_calls import Guided
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
    if check == GUIDED:
        return Guided(subject).check(case)
    if not layers and not relations:
        known = [*(layer.name for layer in LAYERS), GUIDED] + [relation.label for relation in RELATIONS]
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


FEATURES = (
    ("causal",), ("window",), ("key_lengths",), ("query_lengths",), ("key_visible",), ("segments",), ("visible",), ("bias",),
    *((setting.name,) for setting in SCORE_SETTINGS), ("scale",), ("dropout",), ("lse",), ("weights",),
    ("gradients", "bias_gradient"), ("regime",), ("layout",), ("grad_layout",),
)  # fmt: skip
"""What a call may ask for beyond being one, by the fields that say so."""


def smaller_cases(case: Case, subject: BackendUnderTest) -> Iterator[Case]:
    """Cases that ask for less than `case` and that the subject accepts, the least first, each once."""
    seen = {_said(case)}
    for other in sorted((*_plainer(case), *_shorter(case)), key=_weight):
        if _weight(other) < _weight(case) and _said(other) not in seen and not any(invalid_fields(other)):
            seen.add(_said(other))
            if subject.accepts(other.request(subject.device)):
                yield other


def _plainer(case: Case) -> Iterator[Case]:
    """With none, one, two of its features, or all but one; in full and in the least size."""
    plain = Case()
    asked = _features(case)
    for names in chain.from_iterable(combinations(asked, number) for number in {0, 1, 2, max(0, len(asked) - 1)}):
        gone = [field for group in asked if group not in names for field in group]
        left = replace(case, **{field: getattr(plain, field) for field in gone})
        if not (left.causal or left.window is not None or left.bias):
            left = replace(left, offset=None)
        yield from (left, _sized(left, B=1), _sized(left, H=1, G=1), _sized(left, B=1, H=1, G=1, Q=1, K=1))


def _shorter(case: Case) -> Iterator[Case]:
    """One or two of its sizes made less: 1, and the powers of two with their neighbours."""
    steps = {axis: _below(getattr(case, axis)) for axis in "BHQKDV"}
    for one, other in combinations(steps, 2):
        for first in (*steps[one], getattr(case, one)):
            for second in (*steps[other], getattr(case, other)):
                yield _sized(case, **{one: first, other: second})


def _below(size: int) -> list[int]:
    near = {power + step for power in (1, 2, 4, 8, 16, 32, 64, 128, 256) for step in (-1, 0, 1)} | {size - 1}
    return sorted(smaller for smaller in near if 1 <= smaller < size)


def _sized(case: Case, **sizes: int) -> Case:
    """The case with other sizes, and what is said per batch row cut to them."""
    rows = sizes.get("B", case.B)
    cut: dict[str, Any] = {
        name: getattr(case, name)[:rows]
        for name in ("offset", "key_lengths", "query_lengths")
        if isinstance(getattr(case, name), tuple)
    }
    if "H" in sizes and "G" not in sizes:
        cut["G"] = case.G if sizes["H"] % case.G == 0 else 1
    return replace(case, **cut, **cast(dict[str, Any], sizes))


def _features(case: Case) -> list[tuple[str, ...]]:
    plain = Case()
    return [group for group in FEATURES if any(getattr(case, field) != getattr(plain, field) for field in group)]


def _weight(case: Case) -> tuple[int, int]:
    return len(_features(case)), case.B * case.H * (case.Q + case.K) * (case.D + case.V)


def _said(case: Case) -> str:
    return repr(case)
