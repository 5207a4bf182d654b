"""`tfkit bench`."""

import json
import subprocess
import sys

import pytest

from command_line import ROOT
from tfkit_conformance.commands.bench import exit_code

TINY = (
    "bench",
    "attention",
    "--cells",
    "multi30k-cross/forward",
    "--tokens",
    "64",
    "--rounds",
    "1",
    "--backends",
    "eager,sdpa",
)


@pytest.fixture(autouse=True)
def small_ceilings(monkeypatch):
    monkeypatch.setattr("tfkit_conformance.bench.measure.SIDE", {"cpu": 64})
    monkeypatch.setattr("tfkit_conformance.bench.measure.COPIED", {"cpu": 1 << 16})


def test_a_run_from_end_to_end(tfkit, tmp_path):
    file, page = tmp_path / "report.json", tmp_path / "report.html"
    done = tfkit(*TINY, "--json", file, "--html", page)
    assert (done.code, done.err) == (0, "")
    assert "multi30k-cross/forward" in done.out
    data = json.loads(file.read_text())
    [cell] = data["cells"]
    assert [(row["name"], row["status"], len(row["seconds"])) for row in cell["backends"]] == [
        ("eager", "timed", 1), ("sdpa", "timed", 1),
    ]  # fmt: skip
    assert data["machine"]["versions"]["torch"]
    assert data["machine"]["device_name"]
    assert data["settings"]["tokens"] == 64
    assert data["command"].startswith("tfkit ")
    assert page.read_text().startswith("<!doctype html>")


def test_standard_output_is_only_json(tfkit):
    assert tfkit(*TINY, "--json", "-").json()["cells"][0]["name"] == "multi30k-cross/forward"


def test_the_list_of_cells_measures_nothing_and_imports_no_torch(tfkit):
    rows = tfkit("bench", "attention", "--list", "--cells", "decode-*", "--json", "-", "--device", "cuda").json()["cells"]
    assert [row["batch"] for row in rows] == [128, 32, 8, 2, 1]
    assert "decode-1024/forward" in tfkit("bench", "attention", "--list", "--cells", "all").out
    probe = "import sys; from tfkit.cli import main; main(['bench', 'attention', '--list']); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", probe], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout.splitlines()[-1] == "False"


@pytest.mark.parametrize(
    ("words", "code", "said"),
    [
        (["bench"], 2, "attention|auto"),
        (["bench", "atention"], 2, "attention"),
        (["bench", "attention", "--cells", "desne-d64-512"], 2, "did you mean `dense-d64-512`"),
        (["bench", "attention", "--cells", ","], 2, "commas"),
        (["bench", "attention", "--backends", "spda"], 2, "did you mean `sdpa`"),
        (["bench", "attention", "--backends", "auto"], 2, "`auto` chooses among backends"),
        (["bench", "attention", "--device", "cuda:99"], 2, "TFK046"),
        (["bench", "attention", "--dtype", "float23"], 2, "did you mean `float32`"),
        (["bench", "attention", "--rounds", "0"], 2, "from 1"),
        (["bench", "attention", "--budget", "soon"], 2, "seconds"),
        (["bench", "attention", "--json", "nowhere/x.json"], 2, "is not a directory"),
        (["bench", "attention", "--html", "-"], 2, "a file is expected"),
        (["bench", "attention", "--list", "--json", "x.json"], 2, "writes no file"),
        (["bench", "attention", "--cels", "x"], 2, "did you mean `--cells`"),
    ],
)
def test_a_wrong_command_line_is_reported(tfkit, words, code, said):
    done = tfkit(*words)
    assert (done.code, done.out) == (code, "")
    assert said in done.err
    assert len(done.err.splitlines()) == 1


@pytest.mark.parametrize(
    ("statuses", "missing", "interrupted", "code"),
    [
        (["timed", "refused"], [], False, 0),
        (["timed", "wrong"], ["x"], False, 1),
        (["failed"], [], False, 1),
        (["timed"], ["x"], False, 3),
        (["memory"], [], False, 3),
        (["slow"], [], False, 3),
        (["wrong"], ["x"], True, 130),
    ],
)
def test_exit_codes(statuses, missing, interrupted, code):
    rows = [{"status": status} for status in statuses]
    assert exit_code({"cells": [{"backends": rows}], "missing": missing, "interrupted": interrupted}) == code


def test_an_interrupted_run_writes_what_it_has(tfkit, tmp_path, monkeypatch):
    from tfkit_conformance.bench.timer import CpuClock

    file, calls, plain = tmp_path / "report.json", [], CpuClock.time

    def stopping(self, step):
        calls.append(1)
        if len(calls) == 40:
            raise KeyboardInterrupt
        return plain(self, step)

    monkeypatch.setattr(CpuClock, "time", stopping)
    done = tfkit(
        *TINY[:3], "multi30k-*/forward", *TINY[4:], "--json", file, "--html", tmp_path / "report.html", "--rounds", "4"
    )
    assert (done.code, done.err) == (130, "tfkit: interrupted\n")
    data = json.loads(file.read_text())
    assert data["interrupted"]
    assert [row["reason"] for row in data["missing"]] == ["interrupted"]
    assert [cell["name"] for cell in data["cells"]] == ["multi30k-encoder/forward", "multi30k-decoder/forward"]
    assert "not run, interrupted: multi30k-cross/forward" in done.out
    assert "interrupted" in (tmp_path / "report.html").read_text()


@pytest.mark.slow
def test_the_table_of_auto_is_measured_written_and_used(tfkit, tmp_path):
    file = tmp_path / "auto.json"
    words = ["bench", "auto", "--backends", "sdpa", "--lengths", "8", "--tokens", "16", "--rounds", "1", "--dtype", "float32"]
    done = tfkit(*words, "--json", file)
    assert (done.code, done.err) == (0, "")
    assert "x  float32, any length, no gradients" in done.out
    table = json.loads(file.read_text())
    assert (table["device"], set(table["rows"])) == ("cpu", {"sdpa"})
    for row in table["rows"]["sdpa"]:
        row["relative_time"] = 0.01 if row.get("decoding") else 7.0
    file.write_text(json.dumps({**table, "device_name": "The machine of a test"}))
    spec = ["plan", "specs/transformer-base.yaml", "--auto-table", file]
    assert {row["chosen"] for row in tfkit(*spec, "--json").json()["sites"]} == {"eager"}
    assert {row["chosen"] for row in tfkit(*spec, "--inference", "--lengths", "1x50", "--json").json()["sites"]} == {"sdpa"}
    text = " ".join(tfkit(*spec).out.split())
    assert "7.00 x eager accepted; measured for float32" in text
    assert "on The machine of a test, " in text
    [evaluated] = [each for each in tfkit(*spec, "--json").json()["sites"][0]["candidates"] if each["backend"] == "sdpa"]
    assert evaluated["rows"][0]["measured"].startswith("The machine of a test")
    assert tfkit("build", "specs/transformer-tiny.yaml", "--auto-table", file).code == 0


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bench", "auto", "--cells", "all"], "takes none"),
        (["bench", "auto", "--html", "x.html"], "takes none"),
        (["bench", "attention", "--lengths", "3"], "takes none"),
        (["bench", "attention", "--json", "x", "--html", "./x"], "TFK081 ./x cannot be written: two outputs have this name"),
        (["bench", "cpu", "--spec", "README.md", "--json", "README.md"], "cannot be written: the command reads it"),
        (["bench", "auto", "--lengths", "64,32"], "rising order"),
        (["bench", "auto", "--lengths", "x"], "whole number"),
        (["plan", "specs/transformer-base.yaml", "--auto-table", "nowhere.json"], "TFK062"),
        (["plan", "specs/transformer-base.yaml", "--auto-table", "README.md"], "no JSON"),
        (["build", "specs/transformer-base.yaml", "--auto-table", "specs/schema.json"], "no table"),
    ],
)
def test_wrong_options_of_the_table_are_errors(tfkit, words, said):
    done = tfkit(*words)
    assert (done.code, done.out) == (2, "")
    assert said in done.err
    assert len(done.err.splitlines()) == 1
