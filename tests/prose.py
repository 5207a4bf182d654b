"""A linter of prose: words that tfkit's texts do not use, each with what to write in their place; and names that say nothing.

    python tests/prose.py [PATH ...]      exit code 1 if a text holds one

It reads comments, docstrings and messages of Python files, and Markdown outside of code. The words are in `prose.yaml`; a word
there is a regular expression that must match whole words, in any case. Names are those of variables and parameters.
"""

from __future__ import annotations

import ast
import io
import re
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).parent.parent
TEXTS = ("tfkit", "plugins/*/tfkit_*", "docs", "bench", "*.md")
"""Where prose is checked, from the root of the repository. The changelog quotes old names."""
NOT_CHECKED = {"CHANGELOG.md"}
NAMES = {"found", "each", "own", "given", "made", "shown", "said", "stick", "FEW", "ENOUGH", "KEPT"}
"""Names that do not say what they hold."""
OLD_NAMES = ("bench", "docs")
"""Where such names are still left."""


def rules() -> list[tuple[re.Pattern[str], str]]:
    """The words with their replacements."""
    table = yaml.safe_load((ROOT / "tests" / "prose.yaml").read_text(encoding="utf-8"))
    return [(re.compile(rf"\b(?:{word})\b", re.IGNORECASE), better) for word, better in table.items()]


def texts_of_python(source: str) -> Iterator[tuple[int, str]]:
    """Every comment and every line of a string that holds prose (more than one word), with its line number."""
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type in (tokenize.COMMENT, tokenize.STRING) and " " in token.string:
            for offset, line in enumerate(token.string.splitlines()):
                indent = "" if offset else " " * token.start[1]
                yield token.start[0] + offset, indent + line


def texts_of_markdown(source: str) -> Iterator[tuple[int, str]]:
    """Every line outside of fenced code."""
    fenced = False
    for number, line in enumerate(source.splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, line


def vague_names(source: str) -> Iterator[tuple[int, int, str]]:
    """Line, column and name of every variable and parameter that is called by a word of `NAMES`."""
    for node in ast.walk(ast.parse(source)):
        name = node.arg if isinstance(node, ast.arg) else node.id if isinstance(node, ast.Name) else ""
        if name in NAMES and not (isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)):
            yield node.lineno, node.col_offset + 1, name


def findings(path: Path, words: list[tuple[re.Pattern[str], str]]) -> Iterator[str]:
    """What is wrong in a file, with file, line and column. Text in backticks is code."""
    read = texts_of_python if path.suffix == ".py" else texts_of_markdown
    for number, line in read(path.read_text(encoding="utf-8")):
        prose = re.sub(r"`[^`]*`", lambda code: " " * len(code[0]), line)
        for word, better in words:
            for found in word.finditer(prose):
                yield f"{path}:{number}:{found.start() + 1}: `{found[0]}`: write {better}"
    if path.suffix == ".py" and not any(path.is_relative_to(ROOT / place) for place in OLD_NAMES):
        for number, column, name in vague_names(path.read_text(encoding="utf-8")):
            yield f"{path}:{number}:{column}: `{name}`: name what it holds"


def files(arguments: list[str]) -> Iterator[Path]:
    """The files to check: those named, or all of `TEXTS`."""
    places = [Path(name) for name in arguments] or [place for pattern in TEXTS for place in ROOT.glob(pattern)]
    for place in places:
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.suffix in (".py", ".md") and path.name not in NOT_CHECKED:
                yield path


def main() -> int:
    words = rules()
    wrong = [finding for path in files(sys.argv[1:]) for finding in findings(path, words)]
    print("\n".join(wrong) or "prose: nothing found")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
