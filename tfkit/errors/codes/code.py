"""What a code says."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Code:
    """What a code means: the rule that was broken, an example that breaks it, and the way out."""

    title: str
    rule: str
    wrong: str
    fix: str
