"""The output of commands: data on standard output, errors on standard error, or both as JSON. `tfkit.view.terminal` escapes
control characters."""

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
from ..errors.diagnostic import cut
from ..view.terminal import Stream, shown, write_drawn

if TYPE_CHECKING:
    from rich.console import RenderableType

NARROWEST, WIDEST = 72, 120
"""The smallest and the largest width, in columns; without a terminal the largest. Text is wrapped, never cut off."""

MAX_OF_KIND = 10
"""The largest number of errors of one kind that are printed; `--json` prints all."""
VARIABLE = re.compile("`[^`]*`|[0-9]+")
"""The parts of a message that differ between errors of one kind."""


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
    """Print data as JSON.

    Args:
        data: what the json module can write.
    """
    print(json.dumps(data, indent=2, allow_nan=False))


def print_text(text: str) -> None:
    """Print text that ends with one line break.

    Args:
        text: the text, with or without a line break at its end.
    """
    print(text, end="" if text.endswith("\n") else "\n")


def print_rich(*renderables: RenderableType) -> None:
    """Print with Rich, no wider than the terminal. Colours are used on a terminal only, and not under NO_COLOR.

    Args:
        renderables: texts, tables and trees.
    """
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
    """One line per error. Of errors that differ only in quoted names and numbers, the first `MAX_OF_KIND` and a count."""
    by_kind: dict[tuple[str, str], list[Diagnostic]] = {}
    for diagnostic in diagnostics:
        similar = by_kind.setdefault((diagnostic.code, VARIABLE.sub("`...`", diagnostic.message)), [])
        similar.append(diagnostic)
        if len(similar) <= MAX_OF_KIND:
            yield str(diagnostic)
    for (code, message), similar in by_kind.items():
        if len(similar) > MAX_OF_KIND:
            yield f"{code} and {len(similar) - MAX_OF_KIND:,} more: {cut(message)}"


def print_bug(bug: Exception, as_json: bool, with_traceback: bool) -> None:
    """One line that attributes a bug to a plugin or to tfkit, and a traceback if requested."""
    from .plugin_attribution import culprit

    if with_traceback:
        import traceback

        traceback.print_exception(bug, file=sys.stderr)
    print_bug_report(" ".join(f"{type(bug).__name__}: {bug}".split()), culprit(bug), as_json)


def print_bug_report(reason: str, whose: str | None, as_json: bool) -> None:
    """Print the error about an unexpected exception.

    Args:
        reason: the exception on one line.
        whose: the plugin that raised it; None for tfkit.
        as_json: print JSON.
    """
    if whose is not None:
        print_diagnostics([Diagnostic("TFK056", f"the plugin {whose} failed: {reason}", "--traceback prints where")], as_json)
        return
    fix = "please report it, with the spec, what the same command prints with --traceback, and what `tfkit doctor` prints"
    print_diagnostics([Diagnostic("TFK099", f"this is a bug in tfkit: {reason}", fix)], as_json)


def write_whole(path: str, content: str | bytes) -> None:
    """Write a file atomically.

    Args:
        path: the file.
        content: its content.

    Raises:
        StoreError: the file cannot be written; nothing was changed.
    """
    from ..files import write_whole as write

    write(path, content)


def check_place(path: str) -> None:
    """Check, before a long computation, that `write_whole` can write a file. Raises InputError."""
    from ..files import check_writable
    from ..io.layout import listed_names

    place = Path(path)
    if not place.parent.is_dir():
        fix = f"create it first: mkdir -p {place.parent}" if not place.parent.exists() else ""
        raise InputError(Diagnostic("TFK081", f"{path} cannot be written: {place.parent} is not a directory", fix))
    try:
        check_writable(path)
    except OSError as reason:
        raise InputError(Diagnostic("TFK081", f"{path} cannot be written: {reason.strerror}", "name a file")) from None
    if place.exists() and place.resolve().name in listed_names(place.resolve().parent):
        raise InputError(
            Diagnostic("TFK081", f"{path} cannot be written: it is a file of the saved model there", "name another file")
        )


def check_places(outputs: Iterable[str | None], inputs: Iterable[str | None] = ()) -> None:
    """`check_place` for all files that a command writes.

    Args:
        outputs: the files; None and `-`, the standard output, are left out.
        inputs: files that the command reads.

    Raises:
        InputError: one cannot be written, is written twice, or is read.
    """
    taken = {os.path.realpath(path): "the command reads it" for path in inputs if path}
    for path in outputs:
        if path in (None, "-"):
            continue
        check_place(path)
        place = os.path.realpath(path)
        if place in taken:
            raise InputError(Diagnostic("TFK081", f"{path} cannot be written: {taken[place]}", "name another file"))
        taken[place] = "two outputs have this name"
