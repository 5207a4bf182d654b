"""Commands on a terminal, on a full disk and on streams that are closed, as separate processes."""

import json
import os
import pty
import re
import subprocess
import sys
from pathlib import Path

import pytest

from command_line import ROOT, SMALL
from tfkit import Diagnostic
from tfkit.cli.output import MAX_OF_KIND, folded
from tfkit.errors.diagnostic import MAX_TEXT
from translation_task import write_task

EVIL = "\x1b]52;c;ZXZpbA==\x07\x1b[2J\u202e"
"""Writes to the clipboard, clears the screen, turns the writing around."""
SHOWN = r"\x1b]52;c;ZXZpbA==\x07\x1b[2J\u202e"
MODULE = [sys.executable, "-m", "tfkit"]
SEQUENCES = re.compile(r"\x1b\[[0-9;]*m|\x1b\[\?25[lh]|\x1b\[[12]K|\x1b\[1A|\r")
"""What Rich and tfkit write themselves: colours, cursor movements, a rewritten line."""
SPEC = ROOT / "specs" / "tiny-rotary.yaml"
PRINT = [
    ["--help"], ["--version"], ["check", "--help"], ["check", SPEC], ["check", SPEC, "--json"],
    ["check", "nowhere.yaml", "--json"],
    ["show", SPEC], ["show", SPEC, "--resolved"], ["plan", SPEC], ["build", SPEC], ["plugins"], ["schema"], ["explain"],
    ["explain", "A2"], ["conformance", "none", "--slot", "norm", "--profile", "quick"], ["bench", "attention", "--list"],
]  # fmt: skip


def on_terminal(*words, cwd):
    """What a command writes to a terminal, both streams together, and its exit code."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm-256color", "COLUMNS": "120"}
    environment.pop("NO_COLOR", None)
    child = subprocess.Popen([*MODULE, *map(str, words)], cwd=cwd, env=environment, stdin=theirs, stdout=theirs, stderr=theirs)
    os.close(theirs)
    written = b""
    try:
        while chunk := os.read(ours, 65536):
            written += chunk
    except OSError:  # how Linux says that the other side is closed
        pass
    os.close(ours)
    return child.wait(), written.decode()


def without_controls(written):
    """The text without tfkit's own control sequences. Fails where another control character is left."""
    text = SEQUENCES.sub("", written)
    assert re.findall("[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]", text) == []
    return text


@pytest.mark.slow
def test_a_file_name_clears_no_screen_and_forges_no_line(tmp_path):
    name = f"{EVIL}\nTFK000 forged\r.yaml"
    code, written = on_terminal("check", name, cwd=tmp_path)
    assert (code, without_controls(written)) == (
        2,
        rf"{SHOWN}\nTFK000 forged\r.yaml:1:1: TFK000 the file cannot be read: no such file or directory" + "\n",
    )
    (tmp_path / name).write_text(SMALL)
    code, written = on_terminal("check", name, cwd=tmp_path)
    assert code == 0
    assert without_controls(written).startswith(rf"{SHOWN}\nTFK000 forged\r.yaml: OK, small has ")


@pytest.mark.slow
def test_names_in_a_table_keep_to_their_cells_and_colours_stay(tmp_path, small):
    quoted = json.dumps(f"{EVIL}\nname")
    small.write_text(SMALL.replace("name: small", f"name: {quoted}\nreference: {quoted}", 1))
    for words in (["show", small], ["plan", small], ["build", small, "-o", tmp_path / f"out{EVIL}\nsaved"]):
        code, written = on_terminal(*words, cwd=tmp_path)
        assert code == 0, written
        assert "\x1b[1m" in written
        assert rf"{SHOWN}\nname" in without_controls(written)
    assert rf"/out{SHOWN}\nsaved" in "".join(without_controls(written).split())


def test_a_table_of_auto_names_its_device_on_one_line(tmp_path, small):
    table = json.loads((ROOT / "tfkit/builtin/attention/auto_cpu.json").read_text())
    table["device_name"] = f"{EVIL}\nTFK000 forged"
    (tmp_path / "table.json").write_text(json.dumps(table))
    code, written = on_terminal("plan", small, "--auto-table", "table.json", "--backend", "auto", cwd=tmp_path)
    assert code == 0
    assert rf"on{SHOWN}\nTFK000forged" in "".join(without_controls(written).split())


@pytest.mark.exhaustive
@pytest.mark.parametrize(
    ("file", "content", "words"),
    [
        ("case.json", {"backend": f"{EVIL}\nx", "B": 1, "K": 2, "D": 8}, ["conformance", "--replay", "case.json"]),
        ("model/plan.json", {"sites": {}, f"{EVIL}\nx": 1}, ["verify", "model"]),
        ("model/plan.json", {"sites": {f"{EVIL}\nx": [f"{EVIL}\ny"]}}, ["verify", "model"]),
    ],
)
def test_errors_about_a_hostile_file_are_plain_lines(tfkit, tmp_path, small, file, content, words):
    assert tfkit("build", small, "-o", tmp_path / "model").code == 0
    (tmp_path / file).write_text(json.dumps(content))
    code, written = on_terminal(*words, cwd=tmp_path)
    assert code in (1, 2)
    assert all(line.startswith("TFK") for line in without_controls(written).splitlines())


@pytest.mark.slow
def test_the_panel_of_a_training_run_shows_a_hostile_recipe_as_text(tmp_path):
    recipe = write_task(tmp_path)
    name = json.dumps(f"{EVIL}\nmodel: forged")
    recipe.write_text(recipe.read_text().replace("name: small", f"name: {name}"))
    code, written = on_terminal("train", recipe, "-o", f"run{EVIL}", "--set", "stopping.max_steps=2", cwd=tmp_path)
    text = without_controls(written)
    assert code == 0, text
    assert rf"recipe: {SHOWN}\nmodel: forged" in " ".join(text.split())
    assert f"model:run{SHOWN}/models" in "".join(text.split())
    assert re.search("^model: forged", text, re.MULTILINE) is None


@pytest.mark.slow
@pytest.mark.parametrize("words", PRINT, ids=lambda words: " ".join(Path(word).name for word in map(str, words)))
def test_a_full_disk_is_one_error(words, tmp_path):
    with open("/dev/full", "w") as full:
        done = subprocess.run([*MODULE, *map(str, words)], cwd=tmp_path, stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr) == (
        1, "TFK081 standard output could not be written: No space left on device\n",
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize(
    ("closed", "words", "code", "errors"),
    [
        (">&-", "--version", 1, "TFK081 standard output could not be written: Bad file descriptor\n"),
        (">&-", "check nowhere.yaml", 2, "nowhere.yaml:1:1: TFK000 the file cannot be read: no such file or directory\n"),
        (">&-", f"diff {SPEC} {SPEC}", 2, "TFK081 standard output could not be written: Bad file descriptor\n"),
        ("2>&-", "check nowhere.yaml", 2, ""),
        ("2>/dev/full", "check nowhere.yaml", 2, ""),
        ("<&- >&- 2>&-", "check nowhere.yaml", 2, ""),
        ("<&- >&- 2>&-", "--version", 1, ""),
    ],
)
def test_closed_streams(closed, words, code, errors, tmp_path):
    command = f"{' '.join(MODULE)} {words} {closed}"
    done = subprocess.run(["sh", "-c", command], cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (code, "", errors)


@pytest.mark.slow
def test_with_json_a_full_disk_is_reported_on_standard_error(tmp_path, small):
    with open("/dev/full", "w") as full:
        done = subprocess.run([*MODULE, "show", small, "--json"], stdout=full, stderr=subprocess.PIPE, text=True)
    assert (done.returncode, done.stderr.startswith("TFK081 ")) == (1, True)


def test_a_long_text_that_an_error_quotes_is_cut():
    long = Diagnostic("TFK082", "m" * 20_000, "f" * 20_000, "p" * 20_000)
    rest = "... (20,000 characters)"
    assert str(long) == f"TFK082 {'p' * MAX_TEXT}{rest}: {'m' * MAX_TEXT}{rest}; {'f' * MAX_TEXT}{rest}"
    assert long.as_data()["message"] == f"{'m' * MAX_TEXT}{rest}"
    *_, more = folded([Diagnostic("TFK082", f"{'m' * 20_000}{number}") for number in range(MAX_OF_KIND + 1)])
    assert more == f"TFK082 and 1 more: {'m' * MAX_TEXT}... (20,005 characters)"


def test_errors_of_one_kind_are_folded_and_json_has_them_all(tfkit, tmp_path):
    bomb = tmp_path / "bomb.yaml"
    levels = [f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]\n" for level in range(1, 9)]
    bomb.write_text("tfkit: 1\na0: &a0 [x]\n" + "".join(levels))
    progress = tfkit("check", bomb).err.splitlines()
    aliases = [line for line in progress if "the alias" in line and "more" not in line]
    assert len(aliases) == MAX_OF_KIND
    assert f"TFK005 and {72 - MAX_OF_KIND} more: the alias `...` is no part of the language" in progress
    [found] = json.loads(tfkit("check", bomb, "--json").out)
    assert sum("the alias" in diagnostic["message"] for diagnostic in found["diagnostics"]) == 72
    assert len(progress) < 40
