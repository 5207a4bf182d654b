"""Changes of drawn cases so that relations apply, and the features with which they do not apply."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

from torch import Tensor

from tfkit.inspection import SCORE_SETTINGS

from ..attention.backend_under_test import BackendUnderTest
from ..attention.case import Case
from ..attention.elements import REPEATING
from ..attention.reference import visible_pairs
from .relation import Feature

BENT_SCORES = Feature(
    " or ".join(f"a {setting.words}" for setting in SCORE_SETTINGS),
    lambda case, subject: any(value is not None for value in case.score_settings().values()),
)
NO_GRADIENTS = Feature("no gradients", lambda case, subject: not (case.gradients or case.bias_gradient))
NO_QUERY_GRADIENTS = Feature("no gradients", lambda case, subject: not case.gradients)
NO_FLOAT64 = Feature("float64 is not declared", lambda case, subject: "float64" not in subject.capabilities.dtypes)
NO_CAUSAL = Feature("causal is not declared", lambda case, subject: not case.causal)
NO_GROUPS = Feature("grouped queries are not declared", lambda case, subject: case.G == case.H)
ONE_HEAD = Feature("one key/value head", lambda case, subject: case.G == 1)
ONE_BATCH_ROW = Feature("one batch row", lambda case, subject: case.B == 1)
ONE_QUERY = Feature("one query", lambda case, subject: case.Q == 1)
ONE_KEY = Feature("one key", lambda case, subject: case.K == 1)
READS_POSITIONS = Feature(
    "a mask term or a bias that reads key positions",
    lambda case, subject: bool({"causal", "window", "key_lengths"} & case.terms()) or case.bias in ("linear", "distance"),
)
NOTHING_HIDDEN = Feature("no key is hidden from every query", lambda case, subject: not hides_keys(case))
NO_FULLY_MASKED_ROW = Feature("every query sees a key", lambda case, subject: not has_fully_masked_rows(case))


def lacks(term: str) -> Feature:
    """The declaration does not have this mask term."""
    return Feature(f"{term} is not declared", lambda case, subject: term not in subject.capabilities.mask_terms)


def undeclared(name: str) -> Feature:
    """The declaration does not have this capability."""
    return Feature(f"{name} is not declared", lambda case, subject: not getattr(subject.capabilities, name))


def shown(case: Case) -> Tensor:
    """The case's mask, pair by pair: (B,H,Q,K)."""
    return visible_pairs(case.mask(), case.B, case.H, case.Q, case.K)


def hidden_keys(visible: Tensor, G: int) -> Tensor:
    """(B,G,K): the keys that no query of the heads that share them sees, of a mask (B,H,Q,K)."""
    B, H, Q, K = visible.shape
    return ~visible.reshape(B, G, H // G, Q, K).any(3).any(2)


def hides_keys(case: Case) -> bool:
    """Whether some key is hidden from every query of the heads that share it."""
    return bool(case.terms()) and bool(hidden_keys(shown(case), case.G).any())


def has_fully_masked_rows(case: Case) -> bool:
    """Whether some query sees no key."""
    return bool(case.terms()) and not bool(shown(case).any(-1).all())


def moderate(case: Case, subject: BackendUnderTest) -> Case:
    """Numbers that do not underflow when they are scaled by a power of two."""
    calm = ("normal", "large", "offset_values", "ties", "lattice")
    return replace(case, regime=case.regime if case.regime in calm else "normal")


def explicit_scale(case: Case, subject: BackendUnderTest) -> Case:
    """A scale that a function is given: one that it computes itself may be rounded at another place."""
    return replace(case, scale=0.5 if case.scale is None else case.scale)


def own_memory(case: Case, subject: BackendUnderTest) -> Case:
    """No tensor that repeats memory, so that every number can be changed alone."""
    return replace(
        case,
        layout="contiguous" if case.layout in REPEATING else case.layout,
        grad_layout="contiguous" if case.grad_layout.startswith("expanded") else case.grad_layout,
    )


def whole_numbers(case: Case, subject: BackendUnderTest) -> Case:
    """Small whole numbers, whose sums no dtype rounds."""
    return replace(case, regime="lattice")


def without_positions(case: Case, subject: BackendUnderTest) -> Case:
    """The case without what reads key positions."""
    bias = None if case.bias in ("linear", "distance") else case.bias
    return replace(
        case, causal=False, window=None, offset=None, key_lengths=None, shared_lengths=False,
        bias=bias, bias_gradient=case.bias_gradient and bias is not None,
    )  # fmt: skip


def causal(case: Case, subject: BackendUnderTest) -> Case:
    """The case with causality, where it is declared, and at an offset from 0 up, so that early rows see something."""
    if "causal" not in subject.capabilities.mask_terms:
        return case
    return replace(case, causal=True, offset=case.offset if isinstance(case.offset, int) and case.offset >= 0 else 0)


def segmented(case: Case, subject: BackendUnderTest) -> Case:
    """The case with segments."""
    return replace(case, segments=case.segments or 2)


def hiding_keys(case: Case, subject: BackendUnderTest) -> Case:
    """The case with some key hidden from every query, by as small a change as there is."""
    return _first_that(hides_keys, case, subject)


def with_fully_masked_rows(case: Case, subject: BackendUnderTest) -> Case:
    """The case with some query that sees no key, by as small a change as there is."""
    return _first_that(has_fully_masked_rows, case, subject)


def larger(case: Case, subject: BackendUnderTest) -> Case:
    """The case with two batch rows at least."""
    if case.B > 1:
        return case

    def twice(lengths: tuple[int, ...] | None) -> tuple[int, ...] | None:
        return None if lengths is None else (lengths[0], lengths[0])

    offset = twice(case.offset) if isinstance(case.offset, tuple) else case.offset
    return replace(case, B=2, offset=offset, key_lengths=twice(case.key_lengths), query_lengths=twice(case.query_lengths))


def both(*adapts: Callable[[Case, BackendUnderTest], Case]) -> Callable[[Case, BackendUnderTest], Case]:
    """One after the other."""

    def adapt(case: Case, subject: BackendUnderTest) -> Case:
        for change in adapts:
            case = change(case, subject)
        return case

    return adapt


def _first_that(wanted: Callable[[Case], bool], case: Case, subject: BackendUnderTest) -> Case:
    for changed in _masked(case):
        if subject.accepts(changed.request(subject.device)) and wanted(changed):
            return changed
    return case


def _masked(case: Case) -> Iterator[Case]:
    """The case, and the case with one mask term more, for every term and a few patterns of it."""
    yield case
    some = case.seed % 7
    yield replace(case, key_lengths=tuple(max(0, case.K - 1 - (some + row) % case.K) for row in range(case.B)))
    yield replace(case, query_lengths=tuple(max(0, case.Q - 1 - (some + row) % case.Q) for row in range(case.B)))
    yield replace(case, causal=True, offset=-1 - some % 2)
    yield replace(case, causal=True, offset=0)
    for step in range(4):
        moved = replace(case, seed=case.seed + step)
        yield replace(moved, key_visible="coins")
        yield replace(moved, segments=3)
        yield replace(moved, visible="BK")
        yield replace(moved, visible="BQ")
    yield replace(case, window=(0, 0), offset=-1)
