"""An error code in a few lines."""

from __future__ import annotations

import textwrap

from ..codes import Code

WIDTH = 79


def code_text(code: str, entry: Code) -> str:
    """Title, rule, an example that breaks it, and the way out."""
    wrong = textwrap.indent(entry.wrong, "    ")
    return f"{code}  {entry.title}\n\n{_filled(entry.rule)}\n\nWrong:\n{wrong}\n\n{_filled(entry.fix)}\n"


def _filled(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_long_words=False, break_on_hyphens=False)
