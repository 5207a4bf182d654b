"""No Python file of the working directory runs, neither in a command nor in the processes that it starts."""

import json
import os
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest

from command_line import ROOT
from tfkit_conformance.process.parent import ENVIRONMENT, python_command
from translation_task import write_task

NAMES = (
    "json", "re", "subprocess", "platform", "typing", "random", "multiprocessing", "torch", "numpy", "rich", "pydantic", "yaml",
    "hypothesis", "jinja2", "tfkit", "sitecustomize", "usercustomize",
)  # fmt: skip
COMMAND = Path(sysconfig.get_path("scripts")) / "tfkit"


@pytest.fixture
def hostile(tmp_path):
    """A directory of modules with the names of others, each of which leaves a mark when it runs."""
    place = tmp_path / "hostile"
    place.mkdir()
    for name in NAMES:
        (place / f"{name}.py").write_text(f"open({str(place / 'mark')!r}, 'a').write('{name} ')\nraise SystemExit('{name}')\n")
    return place


def run(place, *words, command=COMMAND, variables=None):
    """A console script there, with the tree that is tested on its path."""
    path = [str(ROOT), *(entry for entry in sys.path if Path(entry).parent == ROOT / "plugins")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1", **(variables or {})}
    return subprocess.run([command, *map(str, words)], cwd=place, env=environment, capture_output=True, text=True)


@pytest.mark.slow
def test_a_part_is_judged_and_its_cases_are_run_again(hostile):
    done = run(hostile, "conformance", "rms_norm", "--slot", "norm", "--profile", "quick", "--json", hostile / "report.json")
    assert (done.returncode, done.stderr) == (0, "")
    case = {"law": "no such law", "slot": "norm", "name": "rms_norm"}
    (hostile / "case.json").write_text(json.dumps(case))
    again = run(hostile, "conformance", "--replay", "case.json")
    assert (again.returncode, again.stderr[:6]) == (2, "TFK095"), "the child says what is wrong with the case"
    assert not (hostile / "mark").exists()
    report = json.loads((hostile / "report.json").read_text())
    assert report["verdict"] == "CONFORMANT"


@pytest.mark.slow
def test_commands_without_a_child_run_nothing_of_it_either(hostile, small):
    for words in (["check", small], ["build", small, "-o", hostile / "model"], ["plugins"], ["explain", "A2"]):
        done = run(hostile, *words)
        assert (done.returncode, done.stderr) == (0, ""), words
    assert not (hostile / "mark").exists()


@pytest.mark.exhaustive
def test_processes_that_train_together_run_nothing_of_it(hostile):
    recipe = write_task(hostile.parent)
    place = ["-o", hostile / "run", "--set", "stopping.max_steps=1", "--set", "batching.accumulate=2"]
    words = ["--standalone", "--nproc-per-node", "2", "--no-python", COMMAND, "train", recipe, *place]
    done = run(hostile, *words, command=COMMAND.with_name("torchrun"))
    assert done.returncode == 0, done.stderr
    assert not (hostile / "mark").exists()


def test_the_modules_of_that_directory_do_run_where_python_looks_for_them(hostile):
    done = subprocess.run([sys.executable, "-c", "import json"], cwd=hostile, capture_output=True, text=True)
    assert (done.returncode, (hostile / "mark").read_text()) == (1, "json ")


def test_a_child_has_the_absolute_entries_of_the_module_path(hostile, monkeypatch):
    monkeypatch.chdir(hostile)
    absolute = [entry for entry in sys.path if Path(entry).is_absolute()]
    monkeypatch.setattr("sys.path", ["", "relative", ".", *absolute])
    command = python_command("import json; print(json.dumps(sys.path))")
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == absolute
    assert not (hostile / "mark").exists()


@pytest.mark.slow
def test_no_file_there_configures_a_picture(tmp_path, small):
    (tmp_path / "matplotlibrc").write_text("svg.fonttype: none\nfigure.facecolor: red\nno_such_key: 1\n")
    environment = {"MPLCONFIGDIR": str(tmp_path / "fonts")}
    code = "from tfkit.look.forms import check_matplotlib; check_matplotlib(); import matplotlib as m; print(m.rcParams['{}'])"
    done = run(tmp_path, *python_command(code.format("figure.facecolor"))[1:], command=sys.executable, variables=environment)
    assert (done.stdout, done.stderr) == ("white\n", "")
    done = run(tmp_path, "show", small, "-o", "drawing.png", variables=environment)
    assert (done.returncode, done.stderr) == (0, "")


def test_hypothesis_neither_reads_nor_writes_there_in_a_child(tmp_path):
    """It would write this table, the constants of the modules that it tests, and examples that failed."""
    command = python_command("from hypothesis.internal.charmap import charmap; charmap()")
    subprocess.run(command, cwd=tmp_path, env={**os.environ, **ENVIRONMENT}, check=True)
    assert list(tmp_path.iterdir()) == []
