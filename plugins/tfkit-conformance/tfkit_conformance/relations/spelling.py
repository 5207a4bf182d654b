"""R30, R31: one visibility, many spellings. A mask says which pairs see each other, and nothing else (rules A3 and A4).

causal == a window without a left side, up to 0       key_lengths == key_visible == key_segments
every mask == `visible`, pair by pair                 a window wider than the call == none
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from tfkit.plugin import AttentionInputs, Mask

from ..attention.backend_under_test import BackendUnderTest
from ..attention.case import Case
from ..attention.evaluated import Evaluated
from .call_parts import Piece
from .fitting import NO_CAUSAL, causal, lacks, segmented
from .relation import Feature, Relation, rewritten

Spelling = Callable[[Evaluated, Mask], Mask]


def _pair_by_pair(evaluated: Evaluated, mask: Mask) -> Mask:
    return Mask(offset=mask.offset, visible=evaluated.visible.to(evaluated.inputs.query.device))


def _causal_as_window(evaluated: Evaluated, mask: Mask) -> Mask:
    left, right = mask.window or (None, None)
    return replace(mask, causal=False, window=(left, 0 if right is None else min(right, 0)))


def _lengths_as_visibility(evaluated: Evaluated, mask: Mask) -> Mask:
    assert mask.key_lengths is not None
    keys = torch.arange(evaluated.case.K, device=mask.key_lengths.device)
    visible = keys < mask.key_lengths[:, None]
    return replace(mask, key_lengths=None, key_visible=visible if mask.key_visible is None else visible & mask.key_visible)


def _lengths_as_segments(evaluated: Evaluated, mask: Mask) -> Mask:
    assert mask.key_lengths is not None
    lengths = mask.key_lengths
    hidden = torch.arange(evaluated.case.K, device=lengths.device) >= lengths[:, None]
    queries = torch.zeros(evaluated.case.B, evaluated.case.Q, dtype=torch.long, device=lengths.device)
    return replace(mask, key_lengths=None, query_segments=queries, key_segments=hidden.long())


def _segments_renamed(evaluated: Evaluated, mask: Mask) -> Mask:
    """Only equality of segment numbers says anything."""
    assert mask.query_segments is not None
    assert mask.key_segments is not None
    return replace(mask, query_segments=7 - mask.query_segments, key_segments=7 - mask.key_segments)


def _wide_window(evaluated: Evaluated, mask: Mask) -> Mask:
    offset = mask.offset
    wide = evaluated.case.Q + evaluated.case.K + (abs(offset) if isinstance(offset, int) else 0)
    if isinstance(offset, torch.Tensor):
        wide += int(offset.abs().max())
    sides = ((wide, wide), (wide, None), (None, wide))
    return replace(mask, window=sides[evaluated.case.seed % 3], offset=0 if offset is None else offset)


def _spelt(name: str, number: str, summary: str, spelling: Spelling, words: str,
           adapt: Callable[[Case, BackendUnderTest], Case], voided_by: tuple[Feature, ...]) -> Relation:  # fmt: skip
    def parts(evaluated: Evaluated, leaves: AttentionInputs) -> list[Piece]:
        return [Piece(replace(leaves, mask=spelling(evaluated, leaves.mask)))]

    return rewritten(name, number, summary, f"when {words}", parts, "A3", adapt, voided_by)


def _with_lengths(case: Case, subject: BackendUnderTest) -> Case:
    if case.key_lengths is not None or "key_lengths" not in subject.capabilities.mask_terms:
        return case
    return replace(case, key_lengths=tuple((case.seed + 3 * row) % (case.K + 1) for row in range(case.B)))


def _unsegmented(case: Case, subject: BackendUnderTest) -> Case:
    return replace(_with_lengths(case, subject), segments=None)


def _unwindowed(case: Case, subject: BackendUnderTest) -> Case:
    return replace(case, window=None)


SPELLING = (
    _spelt("mask_pair_by_pair", "R30", "A mask written out pair by pair is the same mask.", _pair_by_pair,
           "its mask is written out pair by pair", lambda case, subject: case, (lacks("visible"),)),
    _spelt("causal_as_window", "R30", "Causality is a window that ends at the query.", _causal_as_window,
           "causality is spelt as a window", causal, (NO_CAUSAL, lacks("window"))),
    _spelt("lengths_as_visibility", "R30", "Key lengths are the same as visible keys.", _lengths_as_visibility,
           "key lengths are spelt as visible keys", _with_lengths, (lacks("key_lengths"), lacks("key_visible"))),
    _spelt("lengths_as_segments", "R30", "Keys beyond the length are the same as keys of another segment.",
           _lengths_as_segments,
           "key lengths are spelt as segments", _unsegmented, (lacks("key_lengths"), lacks("segments"))),
    _spelt("segments_renamed", "R30", "Segments may have any numbers.", _segments_renamed,
           "segments have other numbers", segmented, (lacks("segments"),)),
    _spelt("wide_window", "R31", "A window wider than the call hides nothing.", _wide_window,
           "a window as wide as the call is added", _unwindowed, (lacks("window"),)),
)  # fmt: skip
