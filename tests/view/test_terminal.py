"""What of a text may reach a terminal, and what becomes of a write that fails."""

import errno
import io
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from tfkit import Diagnostic
from tfkit.commands import shown
from tfkit.view.console import EscapingConsole
from tfkit.view.terminal import OutputError, Stream, escaped, standard_streams
from tfkit.view.training import Lines, LivePanel, end_text

HOSTILE = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b31m\x7f\u202e\u2066\u2028\rend"
PLAIN = r"\x1b]52;c;ZXZpbA==\x07\x1b[2J\x9b31m\x7f\u202e\u2066\u2028\rend"


class Terminal(io.StringIO):
    """A terminal in memory."""

    encoding = "utf-8"

    def isatty(self):
        return True


@pytest.fixture
def terminals(monkeypatch):
    """Makes standard output and standard error terminals with colours."""
    monkeypatch.setenv("TERM", "xterm-256color")
    for name in ("NO_COLOR", "FORCE_COLOR", "COLUMNS"):
        monkeypatch.delenv(name, raising=False)

    def open_them():  # in the test itself: pytest sets both streams between a fixture and its test
        out, error = Terminal(), Terminal()
        monkeypatch.setattr(sys, "stdout", out)
        monkeypatch.setattr(sys, "stderr", error)
        return out, error

    return open_them


def test_every_control_character_is_escaped_and_nothing_else():
    assert escaped(HOSTILE) == PLAIN
    assert escaped("a\tb\nü 漢 \u00a0\\") == "a\tb\nü 漢 \u00a0\\"
    assert shown("a\tb\nü") == r"a\tb\nü"
    assert shown("bad \udcff byte") == r"bad \udcff byte"
    controls = [chr(code) for code in [*range(32), *range(0x7F, 0xA0)]]
    assert [letter for letter in controls if letter.isprintable() or shown(letter) == letter] == []
    assert [letter for letter in controls if escaped(letter) == letter] == ["\t", "\n"]


def test_invisible_characters_are_escaped_and_joiners_of_words_and_emoji_stay():
    invisible = "\u00ad\u061c\u200b\u200e\u200f\u202e\u2060\u2066\u3164\ufeff\ufff9\U0001d173\U000e0041\U000e0100"
    assert [letter for letter in invisible if not shown(letter).startswith("\\") or escaped(letter) == letter] == []
    assert shown("model\u200b.yaml") == r"model\u200b.yaml"
    words = "\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645 \u0915\u094d\u200d\u0937 \u2764\ufe0f \U0001f468\u200d\U0001f469"
    assert shown(words) == words


def test_on_terminals_both_streams_are_escaped(terminals):
    both = terminals()
    with standard_streams():
        print(HOSTILE)
        print(HOSTILE, file=sys.stderr)
        sys.stdout.writelines([HOSTILE, "\n"])
    assert [each.getvalue() for each in both] == [f"{PLAIN}\n{PLAIN}\n", f"{PLAIN}\n"]
    assert (sys.stdout, sys.stderr) == both


def test_elsewhere_standard_output_is_exact_and_standard_error_is_escaped(capsys):
    with standard_streams():
        print(HOSTILE)
        print(HOSTILE, file=sys.stderr)
    assert capsys.readouterr() == (f"{HOSTILE}\n", f"{PLAIN}\n")


def test_drawn_text_keeps_its_own_colours_only(terminals):
    _, error = terminals()
    table = Table(title=HOSTILE)
    table.add_column(HOSTILE)
    table.add_row(Text(HOSTILE, "bold red"))
    with standard_streams():
        console = EscapingConsole(sys.stderr)
        console.print(table, Panel(HOSTILE), HOSTILE, Text("good", "bold red"))
        with Live(HOSTILE, console=console, transient=True) as live:
            live.update(HOSTILE)
            print(f"{HOSTILE} beside a panel", file=sys.stderr)
    written = error.getvalue()
    assert "\x1b[1;31mgood\x1b[0m" in written
    for bad in ("\x1b]52", "\x1b[2J", "\x9b", "\x7f", "\u202e", "\u2066", "\u2028"):
        assert bad not in written


def test_a_live_panel_and_lines_show_a_hostile_error_on_one_line(terminals):
    _, error = terminals()
    diagnostic = Diagnostic("TFK082", f"{HOSTILE}\nTFK000 forged")
    for callback in (Lines(), LivePanel()):
        error.truncate(0)
        error.seek(0)
        callback.on_warning((diagnostic,))
        assert "".join(error.getvalue().split()) == f"TFK082{PLAIN}\\nTFK000forged"


def test_the_end_of_a_run_is_three_lines_whatever_its_directory_is_called():
    progress = SimpleNamespace(best_step=None)
    outcome = SimpleNamespace(reason="max_steps", model=f"{HOSTILE}\nmodel: forged", progress=progress)
    lines = end_text(outcome, Path(f"{HOSTILE}\ncurve")).splitlines()
    assert lines == ["stopped: max_steps", rf"model: {PLAIN}\nmodel: forged", rf"curve: {PLAIN}\ncurve/curve.html"]


@pytest.mark.parametrize(
    ("model", "end"), [("step-40", ", the best of step 40"), ("step-60", "; the model of step 40, the best, is not there")]
)
def test_another_model_is_not_called_the_best(model, end):
    outcome = SimpleNamespace(reason="max_steps", model=Path("run") / model, progress=SimpleNamespace(best_step=40))
    assert end_text(outcome, Path("run")).splitlines()[1] == f"model: run/{model}{end}"


class Failing(io.StringIO):
    """A stream that has no room for what is flushed."""

    def __init__(self, error):
        super().__init__()
        self.error = error

    def flush(self):
        raise self.error


def test_a_write_error_of_standard_output_has_a_name_of_its_own():
    full = OSError(errno.ENOSPC, "No space left on device")
    with pytest.raises(OutputError) as found:
        Stream(Failing(full), is_error=False).flush()
    assert str(found.value.diagnostic) == "TFK081 standard output could not be written: No space left on device"
    Stream(Failing(full), is_error=True).flush()
    for is_error in (False, True):
        with pytest.raises(BrokenPipeError):
            Stream(Failing(BrokenPipeError()), is_error=is_error).flush()
