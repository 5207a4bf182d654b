"""Lines of the written file: at most `WIDTH` columns, and formatted as `ruff format` would."""

from __future__ import annotations

import re
from collections.abc import Iterator

WIDTH = 120
RETURNED = re.compile(r"^( +)(\w+) = (.*)\n\1return \2$", re.MULTILINE)
"""A value that is returned on the next line."""


def formatted(code: str) -> str:
    """The code with long lines wrapped."""
    code = RETURNED.sub(lambda found: f"{found[1]}return {found[3].partition('  # ')[0]}", code)
    return "\n".join(wrapped for line in code.splitlines() for wrapped in _wrapped(line)) + "\n"


def _wrapped(line: str) -> Iterator[str]:
    """The last bracket of a long line that holds arguments is opened: first on one more line, then one line for each."""
    code, _, comment = line.partition("  # ")
    indent = " " * (len(line) - len(line.lstrip()))
    if len(line) <= WIDTH or line.lstrip().startswith(('"""', "#")):
        yield line
    elif comment:
        yield f"{indent}# {comment}"
        yield from _wrapped(code)
    else:
        start = _opening(code)
        if start < 0:
            yield line
            return
        end = _closing(code, start)
        yield code[: start + 1]
        inside = code[start + 1 : end]
        arguments = [inside] if len(indent) + 4 + len(inside) <= WIDTH else _split(inside)
        for each in arguments:
            yield from _wrapped(f"{indent}    {each}")
        yield f"{indent}{code[end:]}"


def _opening(code: str) -> int:
    """The bracket whose inside is the rest of the line, or the signature of a function."""
    if code.lstrip().startswith("def "):
        return code.index("(")
    return next(
        (at for at, letter in enumerate(code) if letter in "([{" and _closing(code, at) >= len(code.rstrip(":,")) - 9), -1
    )


def _closing(code: str, start: int) -> int:
    """The bracket that closes the one at `start`."""
    depth = 0
    for at in range(start, len(code)):
        depth += (code[at] in "([{") - (code[at] in ")]}")
        if depth == 0:
            return at
    return len(code)


def _split(code: str) -> list[str]:
    """The parts between commas, or the clauses of a comprehension, that stand in no bracket."""
    parts, depth, end = [""], 0, ","
    for at, letter in enumerate(code):
        depth += (letter in "([{") - (letter in ")]}")
        clause = depth == 0 and code.startswith(" for ", at)
        if clause or (letter == "," and depth == 0):
            parts.append("")
            end = "" if clause else end
        else:
            parts[-1] += letter
    return [f"{part.strip()}{end}" for part in parts if part.strip()]
