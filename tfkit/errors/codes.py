"""The stable error codes, read from `codes.yaml`. `tfkit explain` and errors without a text of their own import
this module.

A code keeps its meaning for ever; the text of a message may change.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import yaml


@dataclass(frozen=True)
class Code:
    """The rule that was broken, an example that breaks it, and the fix."""

    title: str
    rule: str
    wrong: str
    fix: str


def _read() -> dict[str, Code]:
    text = Path(__file__).with_name("codes.yaml").read_text(encoding="utf-8")
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # 3 ms; the Python reader takes 150
    return {code: Code(**fields) for code, fields in yaml.load(text, loader).items()}


CODES = _read()
"""Every code, in rising order."""
