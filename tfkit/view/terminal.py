"""Safe output to the terminal: which characters are written, and how write errors are handled.

tfkit prints text from files of other people: names, labels, messages, paths, translations. A control character in such text can
clear the screen, change the clipboard or hide a line. Three rules prevent that:

- Standard error is read by people: every control character in it is written escaped (`\\x1b`), on a terminal or not, because
  logs are read in terminals too. Line ends and tabs stay.
- Standard output is data: on a terminal it is escaped like standard error, otherwise it is written unchanged.
- Tables and live panels have colours. `tfkit.view.console` draws them and escapes their text before it is styled.

A line end inside a name or a message would look like another line of tfkit, so `shown` escapes line ends and tabs too.
`tfkit.errors.control_characters` says which characters these are.

`standard_streams` applies these rules to one command. It also turns a write error of standard output into OutputError, so that
no command mistakes it for an error of a file.
"""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from typing import Any, TextIO, cast

from ..errors import Diagnostic
from ..errors.control_characters import escaped as escaped, shown as shown


class OutputError(Exception):
    """Standard output could not be written; `diagnostic` has the reason."""

    def __init__(self, reason: OSError) -> None:
        super().__init__(str(reason))
        self.diagnostic = Diagnostic("TFK081", f"standard output could not be written: {reason.strerror}")


class Stream:
    """Standard output or standard error under the rules of this module. Other attributes are those of the stream."""

    def __init__(self, stream: TextIO, *, is_error: bool) -> None:
        self.stream = stream
        self.is_error = is_error
        self.escapes = is_error or stream.isatty()

    def write(self, text: str) -> int:
        """Write text of any origin. Empty text is skipped: click writes it to test a stream, and would hide an error."""
        if text != "":
            self.write_drawn(escaped(text) if self.escapes else text)
        return len(text)

    def write_drawn(self, text: str) -> None:
        """Write output of tfkit with its own control sequences."""
        with self._handling_errors():
            self.stream.write(text)

    def writelines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self.write(line)

    def flush(self) -> None:
        with self._handling_errors():
            self.stream.flush()

    @contextmanager
    def _handling_errors(self) -> Iterator[None]:
        """Raises OutputError if standard output fails, BrokenPipeError if its reader was closed. If standard error fails, it is
        silent from then on."""
        try:
            yield
        except OSError as reason:
            self._silence()
            if isinstance(reason, BrokenPipeError):
                raise
            if not self.is_error:
                raise OutputError(reason) from None

    def _silence(self) -> None:
        """Redirect to /dev/null, so that the flush at exit does not fail again."""
        with suppress(OSError, ValueError):  # a stream in memory has no descriptor
            number = os.open(os.devnull, os.O_WRONLY)
            os.dup2(number, self.stream.fileno())
            os.close(number)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.stream, name)


@contextmanager
def standard_streams() -> Iterator[None]:
    """Apply the rules of this module to both streams until the block ends."""
    before = sys.stdout, sys.stderr
    out, error = _open_closed()
    for stream in (out, error):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # the encoding may lack characters of a name
    sys.stdout, sys.stderr = (cast(TextIO, Stream(output, is_error=output is error)) for output in (out, error))
    try:
        yield
    finally:
        sys.stdout, sys.stderr = before


def _open_closed() -> tuple[TextIO, TextIO]:
    """The two streams. /dev/null is opened for the descriptor of a closed stream (`>&-`); otherwise the next opened file would
    get this descriptor and the output of C libraries. A closed standard output fails on a write, a closed standard error is
    silent."""
    if sys.stdin is None:
        os.open(os.devnull, os.O_RDONLY)  # gets the lowest free descriptor: that of the closed stream
    out, error = sys.stdout, sys.stderr
    if out is None:
        out = open(os.open(os.devnull, os.O_RDONLY), "w", encoding="utf-8")  # noqa: SIM115
    if error is None:
        error = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    return out, error


@contextmanager
def silent_libraries() -> Iterator[None]:
    """Discard what libraries write to the descriptor of standard error, below Python, where nothing escapes it."""
    sys.stderr.flush()
    kept, nothing = os.dup(2), os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, 2)
    try:
        yield
    finally:
        os.dup2(kept, 2)
        os.close(kept)
        os.close(nothing)


def write_drawn(stream: TextIO, text: str) -> None:
    """Write text with tfkit's own control sequences, such as those that rewrite a line.

    Args:
        stream: standard output or standard error.
        text: the text, written without escaping.
    """
    if isinstance(stream, Stream):
        stream.write_drawn(text)
    else:
        stream.write(text)
