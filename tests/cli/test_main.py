"""What every command has in common: help, exit codes, errors, bugs, interruptions."""

import importlib
import io
import json
import re
import subprocess
import sys
import warnings

import click
import pytest

from command_line import ROOT
from tfkit import BackendRefused, BuildError, Diagnostic, InputError, PluginError, SpecError, StoreError
from tfkit.cli import dispatch, main
from tfkit.cli.dispatch import COMMANDS, commands, exit_code
from tfkit.cli.usage import UsageError


def test_help_names_every_command(tfkit):
    done = tfkit("--help")
    assert (done.code, done.err) == (0, "")
    assert all(f"\n  {name} " in done.out for name in COMMANDS)
    assert tfkit("-h").out == tfkit().out == done.out


@pytest.mark.parametrize("command", commands.list_commands(click.Context(commands)))
def test_every_command_has_help_that_fits_a_terminal(tfkit, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = tfkit(command, "--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"Usage: tfkit {command} ")
    assert "--json" in done.out
    assert max(map(len, done.out.splitlines())) <= 80
    assert re.findall(r".*\w-\n.*", done.out) == [], "a word is cut at its hyphen"


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["generate", "run", "--prompt", "the \udcff"], "--prompt"),
        (["look", "run", "-o", "page.html", "--text", "a", "--text", "\udcff"], "--text"),
        (["fill", "run", "--text", "\udcff"], "--text"),
        (["translate", "run", "--prefix", "\udcff"], "--prefix"),
        (["check", "transformer-tiny", "--set", "name=\udcff"], "--set"),
        (["explain", "\udcff"], "WHAT"),
    ],
)
def test_words_of_the_command_line_are_utf8(tfkit, words, name):
    done = tfkit(*words)
    assert (done.code, done.out) == (2, "")
    assert done.err == f"TFK090 {name} is no UTF-8; write it in the encoding of the terminal\n"


def test_a_warning_of_a_library_is_one_line_without_its_source():
    with dispatch._short_warnings():
        text = warnings.formatwarning("old\n  format", UserWarning, "/site-packages/lib.py", 7)
    assert text == "warning: old format\n"


@pytest.mark.parametrize("columns", [80, 120])
def test_no_line_about_a_command_is_cut(tfkit, columns, plugin, monkeypatch):
    @click.command("added")
    def added():
        """Print the size of everything that this plugin has ever measured, one line each, in the order of measurement."""

    plugin(added)
    monkeypatch.setenv("COLUMNS", str(columns))
    lines = tfkit("--help").out.partition("Commands:\n")[2].partition("\n\n")[0].splitlines()
    assert [line for line in lines if line.endswith("...")] == []
    assert max(map(len, lines)) <= columns
    assert "in the order of measurement." in " ".join(" ".join(lines).split())


def test_version(tfkit):
    from importlib.metadata import version

    assert tfkit("--version").out == f"tfkit {version('tfkit-core')}\n"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ([""], "no command"),
        (["chek"], "did you mean `check`?"),
        (["bild", "x"], "did you mean `build`?"),
        (["zzz"], "check, show, diff, plan"),
        (["-x"], "options follow a command"),
        (["--json", "check", "x.yaml"], "options follow a command"),
        (["score", "--json"], "the following arguments are required: FILE, REFERENCE"),
        (["average", "x", "y", "--last", "3", "-o", "z"], "--last counts the checkpoints of one run"),
        (["average", "x", "--last", "3"], "the following arguments are required: -o/--output"),
        (["check", "x.yaml", "--json=3"], "argument --json: takes no value"),
        (["schema", "recipe", "-o"], "argument -o: expected one argument"),
        (["schema", "resipe"], "did you mean `recipe`?"),
        (["bench", "atention"], "did you mean `attention`?"),
        (["check"], "SPEC"),
        (["check", "x.yaml", "--jsn"], "did you mean `--json`?"),
        (["check", "x.yaml", "--zzzzzz=3"], "no option `--zzzzzz`"),
        (["check", "x.yaml", "-z"], "no option `-z`"),
        (["show", "x.yaml", "--res"], "no option `--res`"),
    ],
)
def test_a_wrong_command_line_is_one_error(tfkit, words, expected):
    done = tfkit(*words)
    if "--json" in words:
        assert done.json()["diagnostics"][0]["code"] == "TFK090"
        assert expected in done.json()["diagnostics"][0]["message"]
    else:
        assert done.out == ""
        assert done.err.startswith("TFK090 ")
        assert expected in done.err
        assert len(done.err.splitlines()) == 1
    assert done.code == 2


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (SpecError(Diagnostic("TFK010", "")), 2),
        (BackendRefused(Diagnostic("TFK060", "")), 2),
        (InputError(Diagnostic("TFK070", "")), 2),
        (UsageError(Diagnostic("TFK090", "")), 2),
        (StoreError(Diagnostic("TFK080", "")), 2),
        (StoreError(Diagnostic("TFK081", "")), 1),
        (BuildError(Diagnostic("TFK045", "")), 2),
        (BuildError(Diagnostic("TFK046", "")), 2),
        (BuildError(Diagnostic("TFK047", "")), 2),
        (BuildError(Diagnostic("TFK054", "")), 1),
        (BuildError(Diagnostic("TFK091", "")), 1),
        (PluginError(Diagnostic("TFK052", "")), 1),
    ],
)
def test_exit_codes(error, code):
    assert exit_code(error) == code


@pytest.fixture
def broken(monkeypatch):
    def fail(error):
        def run(**_):
            raise error

        monkeypatch.setattr("tfkit.cli.explain.command.callback", run)

    return fail


def test_a_bug_is_reported_in_one_line(tfkit, broken, capsys):
    broken(KeyError("gone\nwrong"))
    done = tfkit("explain")
    assert (done.code, done.out) == (1, "")
    assert done.err.startswith("TFK099 this is a bug in tfkit: KeyError: ")
    assert len(done.err.splitlines()) == 1
    assert tfkit("explain", "--json").json()["diagnostics"][0]["code"] == "TFK099"
    assert main(["explain", "--traceback"]) == 1
    assert "Traceback" in capsys.readouterr().err


def test_memory_that_runs_out_is_no_bug(tfkit, broken):
    broken(MemoryError())
    done = tfkit("explain")
    assert done.code == 2
    assert "TFK045" in done.err


def test_an_interruption_is_130(tfkit, broken):
    broken(KeyboardInterrupt())
    done = tfkit("explain")
    assert (done.code, done.err) == (130, "tfkit: interrupted\n")


def test_a_plugin_error_is_1(tfkit, broken):
    broken(PluginError([Diagnostic("TFK052", "one"), Diagnostic("TFK051", "two")]))
    done = tfkit("explain")
    assert (done.code, done.err) == (1, "TFK052 one\nTFK051 two\n")


@pytest.mark.slow
@pytest.mark.parametrize("words", [["explain"], ["show", "specs/gpt2.yaml"], ["explain", "--json"]])
def test_a_reader_that_goes_away_is_no_bug(words):
    child = subprocess.Popen([sys.executable, "-m", "tfkit", *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    child.stdout.close()
    errors = child.stderr.read()
    child.stderr.close()
    assert (child.wait(), errors) == (141, "")


def test_a_terminal_without_unicode_gets_plain_letters(monkeypatch, small):
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding="ascii"))
    assert main(["show", str(small)]) == 0
    text = raw.getvalue().decode("ascii")
    assert "+-- source" in text
    assert "\\u" not in text
    assert main(["explain", "--json", "TFK005"]) == 0


@pytest.fixture
def plugin(monkeypatch):
    """Adds the command `added` to `tfkit`; an exception stands for a module that cannot be imported."""

    def add(target):
        class Point:
            name = "added"

            def load(self):
                if isinstance(target, Exception):
                    raise target
                return target

        monkeypatch.setattr(dispatch, "_entry_points", lambda: {"added": Point()})

    return add


def test_a_plugin_adds_a_click_command(tfkit, plugin):
    @click.command("added")
    @click.argument("size", type=int)
    def added(size):
        """Print a size."""
        print(size)
        return 3 if size == 3 else None

    plugin(added)
    assert "added Print a size." in " ".join(tfkit("--help").out.split())
    assert (tfkit("added", "2").code, tfkit("added", "3").code, tfkit("added", "2").out) == (0, 3, "2\n")
    assert tfkit("added", "two").err.startswith("TFK090 argument SIZE: 'two' is not a valid integer")
    assert "did you mean `added`?" in tfkit("aded").err


def test_a_plugin_adds_a_module_with_a_command(tfkit, plugin):
    plugin(importlib.import_module("tfkit.cli.explain"))
    assert tfkit("added", "TFK001").out == tfkit("explain", "TFK001").out


def test_a_plugin_that_cannot_be_imported_leaves_the_other_commands(tfkit, plugin):
    plugin(ImportError("no module named acme"))
    assert "cannot be imported: no module named acme" in " ".join(tfkit("--help").out.split())
    assert tfkit("explain", "TFK001").code == 0
    assert tfkit("added").code == 1


def test_a_command_of_a_missing_distribution_names_the_extra(tfkit, monkeypatch):
    monkeypatch.setattr(dispatch, "_entry_points", dict)
    done = tfkit("verify", "x.yaml")
    assert (done.code, done.err) == (
        2, "TFK090 `tfkit verify` belongs to tfkit-conformance, which is not installed; "
        f"pip install {ROOT / 'plugins' / 'tfkit-conformance'}\n",
    )  # fmt: skip


def test_an_option_is_not_the_path_of_another(tfkit):
    done = tfkit("bench", "attention", "--list", "--json", "--html")
    assert (done.code, done.err.split(";")[0]) == (2, "TFK090 argument --json: expected one argument, `--html` is an option")


def test_an_interruption_while_tfkit_is_imported_is_quiet():
    code = (
        "import builtins, sys\nreal = builtins.__import__\n"
        "def interrupted(name, *rest):\n"
        "    if name == 'dispatch' or name.endswith('.dispatch'):\n        raise KeyboardInterrupt\n"
        "    return real(name, *rest)\n"
        "builtins.__import__ = interrupted\nfrom tfkit.cli import main\nsys.exit(main(['schema']))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "tfkit: interrupted\n")


def test_the_module_of_the_entry_point_imports_next_to_nothing():
    code = "import sys; import tfkit; before = set(sys.modules); import tfkit.cli; print(sorted(set(sys.modules) - before))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['tfkit.cli']\n"


def test_the_module_is_the_command():
    done = subprocess.run([sys.executable, "-m", "tfkit", "explain", "--json", "TFK999"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "")
    assert json.loads(done.stdout)["diagnostics"][0]["code"] == "TFK090"


def test_a_question_needs_no_pointer_to_the_help(tfkit):
    assert tfkit("plan", "x.yaml", "--dtype", "bf16").err.endswith("unknown dtype `bf16`; did you mean `bfloat16`?\n")
    assert tfkit("plan", "x.yaml", "--dtype", "int8").err.endswith("; see `tfkit plan --help`\n")


def test_a_working_directory_that_is_gone_is_refused(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    code = (
        "import os, sys; os.chdir(sys.argv[1]); os.rmdir(sys.argv[1]); from tfkit.cli import main; sys.exit(main(['schema']))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(gone)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("TFK090 the working directory does not exist any more")
