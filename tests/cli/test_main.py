"""What every command has in common: help, exit codes, faults, bugs, interruptions."""

import io
import json
import subprocess
import sys

import pytest

from tfkit.cli import COMMANDS, exit_code, main
from tfkit.cli.arguments import Parser, UsageError
from tfkit.errors import BackendRefused, BuildError, Diagnostic, InputError, PluginError, SpecError, StoreError


def test_help_names_every_command(tfkit):
    done = tfkit("--help")
    assert (done.code, done.err) == (0, "")
    assert all(f"\n  {name} " in done.out for name in COMMANDS)
    assert tfkit("-h").out == done.out


@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_has_help_that_fits_a_terminal(tfkit, command, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    done = tfkit(command, "--help")
    assert (done.code, done.err) == (0, "")
    assert done.out.startswith(f"usage: tfkit {command} ")
    assert "--json" in done.out
    assert max(map(len, done.out.splitlines())) <= 80


def test_version(tfkit):
    from importlib.metadata import version

    assert tfkit("--version").out == f"tfkit {version('tfkit')}\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "a command is missing"),
        ([""], "no command"),
        (["chek"], "did you mean `check`?"),
        (["bild", "x"], "did you mean `build`?"),
        (["zzz"], "check, show, plan"),
        (["-x"], "options follow a command"),
        (["--json", "check", "x.yaml"], "options follow a command"),
        (["check"], "SPEC"),
        (["check", "x.yaml", "--jsn"], "did you mean `--json`?"),
        (["check", "x.yaml", "--zzzzzz=3"], "no option `--zzzzzz`"),
        (["check", "x.yaml", "-z"], "no option `-z`"),
        (["show", "x.yaml", "--res"], "no option `--res`"),
    ],
)
def test_a_wrong_command_line_is_one_fault(tfkit, words, said):
    done = tfkit(*words)
    if "--json" in words:
        assert done.json()["diagnostics"][0]["code"] == "TFK090"
        assert said in done.json()["diagnostics"][0]["message"]
    else:
        assert done.out == ""
        assert done.err.startswith("TFK090 ")
        assert said in done.err
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
        def run(*_):
            raise error

        monkeypatch.setattr("tfkit.cli.explain.run", run)

    return fail


def test_a_bug_is_one_line_that_says_so(tfkit, broken, capsys):
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


def test_usage_errors_of_argparse_are_raised_not_printed(capsys):
    with pytest.raises(UsageError, match="tfkit x --help"):
        Parser(prog="tfkit x").error("wrong")
    assert capsys.readouterr() == ("", "")


def test_the_module_is_the_command():
    done = subprocess.run([sys.executable, "-m", "tfkit", "explain", "--json", "TFK999"], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (2, "")
    assert json.loads(done.stdout)["diagnostics"][0]["code"] == "TFK090"


def test_a_question_needs_no_pointer_to_the_help(tfkit):
    assert tfkit("plan", "x.yaml", "--dtype", "bf16").err.endswith("unknown dtype `bf16`; did you mean `bfloat16`?\n")
    assert tfkit("plan", "x.yaml", "--dtype", "int8").err.endswith("; `tfkit plan --help` tells how\n")


def test_a_working_directory_that_is_gone_is_refused(tmp_path):
    gone = tmp_path / "gone"
    gone.mkdir()
    code = (
        "import os, sys; os.chdir(sys.argv[1]); os.rmdir(sys.argv[1]); from tfkit.cli import main; sys.exit(main(['schema']))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(gone)], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith("TFK090 the working directory does not exist any more")
