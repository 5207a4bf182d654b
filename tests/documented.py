"""Runs README.md and every page under docs/, and writes their generated parts.

`python tests/documented.py` rewrites all pages, `python tests/documented.py docs/quickstart.md` some; test_documented.py
fails when a page is not what this module would write.

    <!-- generated: NAME --> ... <!-- end -->   a table of doc_tables.py
    <!-- file: PATH --> ... <!-- end -->        a file of the repository
    ```console                                  commands behind `$ `, each followed by what it prints
    ```python                                   code that must run; the blocks of a page share their names
    <!-- plugins: NAME ... -->                  entry points that the commands of the page see beside the built-in ones
    <!-- bounds: accuracy > 90, ppl < 2 -->     what the next console block must print: for each name, its last number

Rounding depends on the processor, and training multiplies its differences. So a page shows what a trained model printed once,
and the test compares only what holds on every machine. The command decides, without a mark:

    EXACT     it counts, or describes specs and files: compared to the letter
    WORDS     it measures, trains or proves: numbers may differ, their bounds are in a mark; words are compared
    any other it may print what a model says: as many lines with as many columns (for JSON, the same keys), not all empty

An output on a page stays as it is as long as it matches; delete it to have it rewritten. A line `...` in an output stands
for any number of lines. The commands and the Python blocks of a page run in order, in one scratch directory with copies of
`COPIED`. A block that an earlier page shows word for word is not run again.
"""

from __future__ import annotations

import json
import math
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from difflib import SequenceMatcher
from functools import cache
from pathlib import Path
from typing import Any

import warm

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "docs" / "examples"
WIDTH = 118
COPIED = ("specs", "docs/examples", "tests/cli/slips.yaml")

PART = re.compile(
    r"<!-- generated: (?P<table>[\w-]+) -->\n.*?<!-- end -->"
    r"|<!-- file: (?P<file>\S+) -->\n.*?<!-- end -->"
    r"|(?P<mark><!-- bounds: (?P<bounds>[^\n]*) -->\n)?^```(?P<language>console|python)\n(?P<body>.*?)\n```$",
    re.DOTALL | re.MULTILINE,
)
PROGRESS = re.compile(r"\w+: [0-9]+ s, |step [0-9]+, epoch [0-9]+: loss ")
"""How lines begin that a slow command prints every few seconds, on a fast machine none of them."""
NUMBER = r"[-+]?[0-9][0-9,.]*(?:e[+-]?[0-9]+|\+(?:cpu|cu[0-9]+))?"
EXACT = re.compile(
    r"tfkit (?:average|bench attention --list|build|check|diff|eject|explain|export|import|new|plan|plugins|positions)\b"
    r"|tfkit (?:schema|show)\b|(?:cd|echo|ls|printf)\b|head -n [0-9]+$"
)
"""Parts of a command line whose output no rounding changes; `head` of a file may show what a model wrote."""
WORDS = re.compile(r"tfkit (?:bench|compare|conformance|look|score|train|verify)\b")
"""Parts of a command line that print words of the program, and numbers."""
OPTIONAL = re.compile(r", the best so far|\n *looks like: .*")
"""What depends on rounding whether it is printed: which validation is the best, and if a known error explains all findings."""
LANGUAGES = {".py": "python", ".yaml": "yaml", ".toml": "toml", ".jinja": "jinja"}

COMMAND = """\
import os, sys
import tfkit.catalogue as catalogue
from tfkit.comparison import runner
from tfkit_conformance.process import parent

installed, shown = catalogue.entry_points, os.environ["DOCUMENTED_PLUGINS"].split()
catalogue.entry_points = lambda group: [
    point for point in installed(group=group) if group != "tfkit" or point.name in shown
]
cold, warm = parent.python_command, [sys.executable, "-I", "-S", os.environ["WARM_CLIENT"], os.environ["WARM_CODE"]]
parent.python_command = lambda code: [*warm, cold(code)[-1]]
runner.worker_command = lambda: [*warm, f"import sys; from {runner.__package__}.worker import main; sys.exit(main())"]
from tfkit.cli import main

sys.exit(main(sys.argv[1:]))
"""
"""The command line with the named plugins alone, so that a page does not depend on what else is installed. Its child processes
start warm, too."""


def pages() -> list[Path]:
    """The documentation first: the README and the translations repeat some of its blocks."""
    found = sorted((ROOT / "docs").rglob("*.md"))
    translated = [page for page in found if "ko" in page.relative_to(ROOT).parts]
    return [page for page in found if page not in translated] + [*translated, ROOT / "README.md"]


@cache
def blocks(text: str) -> list[str]:
    """The console and Python blocks that a page shows, whole."""
    return [match[0] for match in PART.finditer(text) if match["language"]]


def shown_before(page: Path) -> set[str]:
    """The blocks of all earlier pages."""
    earlier = pages()[: pages().index(page)]
    return {block for other in earlier for block in blocks(other.read_text(encoding="utf-8"))}


class Scratch:
    """A directory to run the blocks of one page in, and the commands `tfkit` and `python` on its path."""

    def __init__(self, directory: Path, plugins: Sequence[str] = ()) -> None:
        self.directory, self.names = directory / "work", {"__name__": "page"}
        tools, site = directory / "bin", directory / "site"
        for made in (self.directory, tools, site):
            made.mkdir()
        for name in COPIED:
            (self.directory / name).parent.mkdir(parents=True, exist_ok=True)
            copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copyfile
            copy(ROOT / name, self.directory / name)
        (directory / "command.py").write_text(COMMAND)
        (directory / "code.py").write_text("import sys; exec(sys.argv[1])")
        client = ROOT / "tests" / "warm" / "client.py"
        for tool, words in {"tfkit": f'-I -S "{client}" "{directory}/command.py"', "python": ""}.items():
            (tools / tool).write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
            (tools / tool).chmod(0o755)
        examples = [str(path) for path in _install_examples(site)]
        paths = [str(ROOT), *examples, str(site), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
        self.environment = {
            **os.environ,
            "COLUMNS": str(WIDTH), "NO_COLOR": "1", "TERM": "dumb", "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore",
            "PATH": f"{tools}{os.pathsep}{os.environ['PATH']}", "PYTHONPATH": os.pathsep.join(paths),
            "DOCUMENTED_PLUGINS": " ".join(["builtin", *plugins]), "WARM_SERVER": warm.server(),
            "WARM_CLIENT": str(client), "WARM_CODE": str(directory / "code.py"),
        }  # fmt: skip

    def run(self, command: str) -> str:
        """What a shell command prints, on both streams."""
        done = subprocess.run(
            ["bash", "-c", command],
            cwd=self.directory, env=self.environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        return "\n".join(line.rstrip() for line in done.stdout.splitlines() if not PROGRESS.match(line))

    def execute(self, code: str, file: str, line: int) -> None:
        """Run a Python block; an error names the line of the page."""
        before = Path.cwd()
        os.chdir(self.directory)
        try:
            exec(compile("\n" * line + code, file, "exec"), self.names)
        finally:
            os.chdir(before)


def _install_examples(site: Path) -> Iterator[Path]:
    """The directories of the plugins under docs/examples, whose metadata is written to `site` as an installation does."""
    for project in sorted(EXAMPLES.glob("*/pyproject.toml")):
        text = project.read_text(encoding="utf-8")
        name, version = (re.search(rf'^{key} = "(.*)"$', text, re.MULTILINE)[1] for key in ("name", "version"))
        points = re.search(r"^\[project.entry-points.tfkit\]\n((?:\w.*\n)+)", text, re.MULTILINE)[1]
        made = site / f"{name.replace('-', '_')}-{version}.dist-info"
        made.mkdir()
        (made / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        (made / "entry_points.txt").write_text("[tfkit]\n" + points.replace('"', ""))
        yield project.parent


@contextmanager
def scratch(plugins: Sequence[str] = ()) -> Iterator[Scratch]:
    with tempfile.TemporaryDirectory() as directory:
        yield Scratch(Path(directory), plugins)


@cache
def table(name: str) -> str:
    from doc_tables import TABLES

    with scratch() as place:
        return TABLES[name](place.run).rstrip()


def written(text: str, skipped: set[str] = frozenset(), file: str = "page") -> str:
    """The text of a page with every generated part regenerated, after running its Python blocks."""
    plugins = re.search(r"<!-- plugins: (.*) -->", text)
    with scratch(plugins[1].split() if plugins else ()) as place:

        def part(match: re.Match[str]) -> str:
            if match["table"]:
                return f"<!-- generated: {match['table']} -->\n{table(match['table'])}\n<!-- end -->"
            if match["file"]:
                return _file(match["file"])
            if match[0] in skipped:
                return match[0]
            if match["language"] == "python":
                place.execute(match["body"], file, text.count("\n", 0, match.start("body")))
                return match[0]
            body, printed = console(match["body"], place.run)
            for broken in beyond(match["bounds"] or "", printed):
                raise AssertionError(f"{file}: {broken}\n{printed}")
            return f"{match['mark'] or ''}```console\n{body}\n```"

        return PART.sub(part, text)


def _file(name: str) -> str:
    path = ROOT / name
    body = path.read_text(encoding="utf-8").rstrip()
    return f"<!-- file: {name} -->\n```{LANGUAGES[path.suffix]}\n{body}\n```\n<!-- end -->"


def console(body: str, run: Callable[[str], str]) -> tuple[str, str]:
    """The text of a console block after running its commands, and all that they printed."""
    parts = re.split(r"^\$ ((?:.*\\\n)*.*)\n", body + "\n", flags=re.MULTILINE)
    lines, everything = [], []
    for command, shown in zip(parts[1::2], parts[2::2], strict=True):
        printed = run(command)
        everything.append(printed)
        shown = shown.removesuffix("\n")
        text = shown if matches(command, shown, printed) else shortened(shown, printed)
        lines += [f"$ {command}", text] if text else [f"$ {command}"]
    return "\n".join(lines), "\n".join(everything)


def matches(command: str, shown: str, printed: str) -> bool:
    """Whether the output of a command on a page stands for the printed one."""
    quoted = re.sub(r"""'[^']*'|"[^"]*\"""", "", command.replace("\\\n", " "))
    parts = [part.strip() for part in re.split(r"[|;]|&&", quoted)]
    if all(map(EXACT.match, parts)):
        return _alike(shown, printed, re.escape)
    if all(EXACT.match(part) or WORDS.match(part) for part in parts):
        return _alike(OPTIONAL.sub("", shown), OPTIONAL.sub("", printed), _words)
    return _shape(shown) == _shape(printed) and bool(shown.strip()) == bool(printed.strip())


def _alike(shown: str, printed: str, pattern: Callable[[str], str]) -> bool:
    lines = shown.rstrip("\n").splitlines()
    expected = "".join(r"(?:.*\n)*?" if line == "..." else pattern(line) + r"\n" for line in lines)
    return re.fullmatch(expected, printed.rstrip("\n") + "\n" if printed else "") is not None


def _words(line: str) -> str:
    """The line with any numbers, and any spaces or rules between its words."""
    pieces = re.split(rf"({NUMBER}| +|─+)", line)
    loose = {"─": "─+", " ": " +"}
    return "".join(loose.get(piece[:1], NUMBER) if index % 2 else re.escape(piece) for index, piece in enumerate(pieces))


def _shape(text: str) -> tuple[int, list[Any]]:
    """What does not depend on what a model says: columns of the widest line, lines, their keys."""
    lines = text.split("\n")
    return max(line.count("\t") for line in lines), [_keys(_json(line)) for line in lines]


def _json(line: str) -> Any:
    with suppress(ValueError):
        return json.loads(line)
    return None


def _keys(value: Any) -> Any:
    return {key: _keys(part) for key, part in value.items()} if isinstance(value, dict) else None


def beyond(bounds: str, printed: str) -> Iterator[str]:
    """The bounds, as in `accuracy > 90, ppl < 2`, that the last numbers behind these names do not keep."""
    for bound in filter(None, bounds.split(", ")):
        name, sign, limit = re.fullmatch(r"(.+) ([<>]) (\S+)", bound).groups()
        found = re.findall(rf"\b{re.escape(name)}\W*?({NUMBER}|nan|inf)", printed)
        value = float(found[-1].rstrip(".,").replace(",", "")) if found else math.nan
        if not (value < float(limit) if sign == "<" else value > float(limit)):
            yield f"{name} is {value}, the page says {bound}"


def shortened(shown: str, printed: str) -> str:
    """A new output without the lines that `...` stands for in the old one."""
    old, new, made = shown.splitlines(), printed.splitlines(), list[str]()
    words = [[re.sub(rf"{NUMBER}| +|─+", " ", line) for line in lines] for lines in (old, new)]
    for _, first, last, start, end in SequenceMatcher(None, *words, autojunk=False).get_opcodes():
        if "..." in old[first:last]:
            before = old[first:last].index("...")
            after = old[first:last][::-1].index("...")
            made += [*new[start : start + before], "...", *new[end - after : end]]
        else:
            made += new[start:end]
    made = [line for index, line in enumerate(made) if line != "..." or made[index - 1 : index] != ["..."]]
    return "\n".join(made) if _alike("\n".join(made), printed, re.escape) else printed


def main(names: Sequence[str]) -> None:
    for page in [Path(name).resolve() for name in names] or pages():
        text = page.read_text(encoding="utf-8")
        made = written(text, shown_before(page), str(page.relative_to(ROOT)))
        if made != text:
            page.write_text(made, encoding="utf-8")
            print(f"{page.relative_to(ROOT)}: rewritten")


if __name__ == "__main__":
    main(sys.argv[1:])
