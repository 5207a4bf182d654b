"""How commands print: data to standard output, errors to standard error, or both as JSON. `tfkit.view.terminal` escapes control
characters."""

from __future__ import annotations

import io
import json
import os
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

from ..errors import Diagnostic, InputError
from ..view.terminal import Stream, shown, write_drawn

if TYPE_CHECKING:
    from rich.console import RenderableType

NARROWEST, WIDEST = 72, 120
"""The fewest and the most columns; the most without a terminal. Text is wrapped, never cut off."""

ALIKE = 10
"""The most errors of one kind that are printed; `--json` prints all."""
QUOTED = re.compile("`[^`]*`|[0-9]+")
"""What differs between the messages of errors of one kind."""


def speak_utf8() -> None:
    """Write UTF-8 to standard output in any locale. Input is UTF-8 too."""
    stream = sys.stdout.stream if isinstance(sys.stdout, Stream) else sys.stdout
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(encoding="utf-8", newline="\n")


def standard_input() -> BinaryIO:
    """The bytes of standard input. Raises InputError if it is closed."""
    if sys.stdin is None:
        raise InputError(Diagnostic("TFK100", "standard input is closed", "give it lines: `< FILE`"))
    return sys.stdin.buffer


def print_json(data: Any) -> None:
    print(json.dumps(data, indent=2))


def print_text(text: str) -> None:
    print(text, end="" if text.endswith("\n") else "\n")


def print_rich(*renderables: RenderableType) -> None:
    """Print for people: colours on a terminal only (and not under NO_COLOR), no wider than the terminal."""
    from ..view.console import EscapingConsole

    console = EscapingConsole(sys.stdout)
    known = console.is_terminal or "COLUMNS" in os.environ
    console.width = min(max(console.width, NARROWEST), WIDEST) if known else WIDEST
    with console.capture() as capture:
        for renderable in renderables:
            console.print(renderable, crop=False)
    write_drawn(sys.stdout, "".join(f"{line.rstrip(' ')}\n" for line in capture.get().splitlines()))


def print_diagnostics(diagnostics: Iterable[Diagnostic], as_json: bool) -> None:
    if as_json:
        print_json({"diagnostics": [diagnostic.as_data() for diagnostic in diagnostics]})
        return
    sys.stdout.flush()
    for line in folded(diagnostics):
        print(shown(line), file=sys.stderr)


def folded(diagnostics: Iterable[Diagnostic]) -> Iterator[str]:
    """One line per error. Of errors that differ only in quoted names and numbers, the first `ALIKE` and a count."""
    hidden: dict[tuple[str, str], list[Diagnostic]] = {}
    for diagnostic in diagnostics:
        like = hidden.setdefault((diagnostic.code, QUOTED.sub("`...`", diagnostic.message)), [])
        like.append(diagnostic)
        if len(like) <= ALIKE:
            yield str(diagnostic)
    for (code, message), like in hidden.items():
        if len(like) > ALIKE:
            yield f"{code} and {len(like) - ALIKE:,} more: {message}"


def print_bug(bug: Exception, as_json: bool, with_traceback: bool) -> None:
    """One line that attributes a bug to a plugin or to tfkit, and a traceback if requested."""
    from .plugin_attribution import culprit

    if with_traceback:
        import traceback

        traceback.print_exception(bug, file=sys.stderr)
    print_bug_report(" ".join(f"{type(bug).__name__}: {bug}".split()), culprit(bug), as_json)


def print_bug_report(reason: str, whose: str | None, as_json: bool) -> None:
    """The error about an unexpected exception: of the plugin `whose`, or of tfkit if None."""
    if whose is not None:
        print_diagnostics([Diagnostic("TFK056", f"the plugin {whose} failed: {reason}", "--traceback prints where")], as_json)
        return
    fix = "please report it, with the spec and what the same command prints with --traceback"
    print_diagnostics([Diagnostic("TFK099", f"this is a bug in tfkit: {reason}", fix)], as_json)


def write_whole(path: str, text: str) -> None:
    """Write a file whole or not at all."""
    from ..files import write_whole as write

    write(path, text)


def check_place(path: str) -> None:
    """Raises InputError if `write_whole` could not write this file. Called before a long computation."""
    from ..files import check_writable

    place = Path(path)
    if not place.parent.is_dir():
        fix = f"make it first: mkdir -p {place.parent}" if not place.parent.exists() else ""
        raise InputError(Diagnostic("TFK081", f"{path} cannot be written: {place.parent} is not a directory", fix))
    try:
        check_writable(place)
    except OSError as reason:
        raise InputError(Diagnostic("TFK081", f"{path} cannot be written: {reason.strerror}", "name a file")) from None
