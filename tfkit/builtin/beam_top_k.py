"""The entry of the built-in beam top-k."""

from __future__ import annotations

from ..plugin import BeamTopK

ENTRIES = [
    BeamTopK(
        name="torch",
        summary="log-softmax, the largest of groups of tokens, and top-k of these groups, in operators of torch",
        needs=(),
        select="tfkit.generate.top_k:best_continuations",
        relative_time=1.0,
    )
]
