"""All built-in position schemes."""

from __future__ import annotations

from ...plugin import PositionScheme
from . import entries_embedding, entries_rotary, entries_scores

ENTRIES: list[PositionScheme] = [*entries_embedding.ENTRIES, *entries_rotary.ENTRIES, *entries_scores.ENTRIES]
