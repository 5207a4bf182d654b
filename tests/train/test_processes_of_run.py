"""Who works in the directory of a run: processes that were killed before its first step, and several at once."""

import json
import shutil
import signal
import socket
from pathlib import Path

import pytest

from tfkit import InputError, load_recipe
from tfkit.train import resume, train

pytestmark = [pytest.mark.xdist_group("several_processes"), pytest.mark.exhaustive]
FEW = ["stopping.max_steps=9", "keeping.every_steps=4"]


def everything(directory: Path) -> dict[str, bytes]:
    """The content of every file by its path."""
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


UNFINISHED = """\
import os, signal, sys
signal.signal(signal.SIGHUP, signal.SIG_DFL)  # under nohup it is ignored, which a child inherits
from tfkit.recipe import load_recipe
from tfkit.train import train
def kill(*given):
    os.kill(os.getpid(), getattr(signal, sys.argv[4]))
module, name = sys.argv[3].rsplit(".", 1)
import importlib
setattr(importlib.import_module(module), name, kill)
train(load_recipe(sys.argv[1]), sys.argv[2])
"""


@pytest.mark.parametrize(
    ("at", "name", "left"),
    [
        ("tfkit.data.preparation.train_tokeniser", "SIGKILL", []),
        ("tfkit.data.corpus.CorpusWriter.close", "SIGTERM", ["data/train.draft"]),
        ("tfkit.train.preparation.fitted_spec", "SIGHUP", ["data/facts.json", "data/train.arrow", "data/validation.arrow"]),
        ("tfkit.train.preparation.write_recipe", "SIGKILL", ["digests.json", "spec.yaml", "tokeniser.json"]),
        ("os.chmod", "SIGKILL", []),
    ],
)
def test_a_run_whose_preparation_was_killed_starts_over(task, tmp_path, at, name, left, fork_jobs):
    directory = tmp_path / "run"
    code = UNFINISHED.replace("import importlib\n", "import importlib\nimport tfkit.data.corpus\n")
    if ".CorpusWriter." in at:
        code = code.replace(
            "setattr(importlib.import_module(module), name, kill)", "tfkit.data.corpus.CorpusWriter.close = kill"
        )
    (tmp_path / "unfinished.py").write_text(code)
    done = fork_jobs.script(tmp_path / "unfinished.py", task, directory, at, name, count=None)
    assert done.returncode == -getattr(signal, name), done.stderr
    there = everything(directory)
    assert set(left) <= there.keys()
    with pytest.raises(InputError) as caught:
        resume(directory)
    assert (
        f"TFK111 the preparation of {directory} was interrupted before its first step" in str(caught.value) or at == "os.chmod"
    )
    assert everything(directory) == there
    outcome = train(load_recipe(task, FEW), directory)
    assert outcome.progress.step == 9
    assert {path.name for path in directory.iterdir()} == {
        "recipe.yaml", "spec.yaml", "tokeniser.json", "digests.json", "data", "checkpoints", "models", "log.jsonl", "run.lock",
    }  # fmt: skip


@pytest.mark.parametrize("how", ["train", "resume"])
def test_of_several_at_once_exactly_one_works_on_a_run(task, tmp_path, how, fork_jobs):
    directories = [tmp_path / f"run-{number}" for number in range(4)]
    task.write_text(task.read_text().replace("max_steps: 24", "max_steps: 6"))
    if how == "resume":
        train(load_recipe(task, ["stopping.max_steps=2"]), tmp_path / "begun")
        recipe = tmp_path / "begun" / "recipe.yaml"
        recipe.write_text(recipe.read_text().replace("max_steps: 2\n", "max_steps: 6\n"))
        for directory in directories:
            shutil.copytree(tmp_path / "begun", directory)
    done = fork_jobs.script(Path(__file__).parent / "concurrent_runs.py", task, 4, how, *directories, count=None)
    assert done.returncode == 0, done.stderr
    for directory, each in zip(directories, json.loads(done.stdout), strict=True):
        ended = dict(each)
        (winner,) = [number for number, words in ended.items() if words == "trained"]
        refused = [words for words in ended.values() if words != "trained"]
        holder = f"process {winner} on {socket.gethostname()}"
        assert len(refused) == 3
        assert all(f"{directory} is in use: {holder}" in words or "exists and holds a run" in words for words in refused)
        assert all("TFK121" in words for words in refused) or how == "train"
        steps = [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]
        assert [entry["step"] for entry in steps if entry["kind"] == "step"] == [1, 2, 3, 4, 5, 6]
        assert resume(directory).progress.step == 6
