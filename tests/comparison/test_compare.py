"""`tfkit compare` on a task of seconds. Only one test starts processes; the others train in this one."""

import json
import os
import signal
import subprocess
import threading
import time
from pathlib import Path

import pytest

from command_line import no_lines_of_progress, tfkit, usual_width
from forced import trained_by
from tfkit import Candidate, InputError, TfkitError, compare_recipes, load_recipe
from tfkit.comparison.worker import run_job
from tfkit.train import train
from tfkit.train.log import read_log
from tfkit.view.comparison import comparison_page
from translation_task import write_task

__all__ = ["no_lines_of_progress", "tfkit", "trained_by", "usual_width"]
SHORT = ("stopping.max_steps=4", "validation.every_steps=2", "keeping.every_steps=1")
FAST = Candidate("", (*SHORT, "schedule.peak=0.05", "schedule.warmup_steps=1"), "fast")


@pytest.fixture
def task(tmp_path):
    return str(write_task(tmp_path, rows=40))


@pytest.fixture
def in_process(trained_by):
    """The runs train in this process, one after another; gives the names of their directories."""
    trained = []

    def train_here(job):
        trained.append("/".join(Path(job.directory).parts[-2:]))
        try:
            run_job(job)
        except TfkitError as error:
            return str(error.diagnostics[0])
        return ""

    trained_by(train_here)
    return trained


def candidates(task, **overrides):
    return [Candidate(task, (*SHORT, *changes), name) for name, changes in overrides.items()]


@pytest.mark.slow
def test_finished_runs_are_kept_and_failed_ones_do_not_stop_the_others(task, tmp_path, in_process):
    given = candidates(task, plain=[], fast=FAST.overrides, wrong=["batching.tokens=4", "batching.max_length=256"])
    found = compare_recipes(given, tmp_path / "runs", seeds=[0, 1], workers=1)
    plain, fast, failed = found.candidates
    assert sorted(plain.runs) == sorted(fast.runs) == [0, 1]
    assert set(failed.failures) == {0, 1}
    assert "TFK109" in failed.failures[0]
    log = [entry for entry in read_log(tmp_path / "runs" / "fast" / "seed-1" / "log.jsonl") if entry.kind == "validation"]
    assert fast.scores[1] == min(entry.nll for entry in log)
    assert plain.scores[0] != plain.scores[1]
    in_process.clear()
    again = compare_recipes(given[:2], tmp_path / "runs", seeds=[0, 1, 2], workers=1)
    assert sorted(in_process) == ["fast/seed-2", "plain/seed-2"]
    assert again.candidates[0].scores.items() > plain.scores.items()
    page = comparison_page(found, "</title><script>alert(1)</script>")
    assert "<script>alert" not in page
    assert page.count("<circle") == 4
    assert "wrong, seed 1 failed: " in page
    with pytest.raises(InputError, match="belongs to other settings"):
        compare_recipes(candidates(task, plain=["batching.tokens=100"]), tmp_path / "runs", seeds=[0], workers=1)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        (["data.held_out=9"], "different validation data"),
        (["validation.metric=bleu"], "different settings of the score"),
        (["tokeniser.vocab_size=80"], "different tokenisers"),
        (["data.held_out=null"], "has no validation data"),
    ],
)
def test_recipes_that_cannot_be_compared(task, tmp_path, changes, message):
    with pytest.raises(InputError, match=message) as refused:
        compare_recipes(candidates(task, plain=[], other=changes), tmp_path / "runs")
    assert refused.value.diagnostics[0].code == "TFK160"
    assert not (tmp_path / "runs").exists()


def test_more_seeds_than_anybody_trains_are_refused(task, tmp_path):
    with pytest.raises(InputError, match=r"TFK160 100,000,000,000,000,000 seeds are more than the 10,000 of a comparison"):
        compare_recipes(candidates(task, plain=[]), tmp_path / "runs", seeds=range(10**17))


def test_two_tokenisers_may_be_compared_by_bleu(task, tmp_path, in_process):
    metric = ["validation.metric=bleu", "stopping.max_steps=1"]
    given = candidates(task, plain=metric, other=[*metric, "tokeniser.vocab_size=80"])
    assert compare_recipes(given, tmp_path / "runs", seeds=[0], workers=1).metric == "bleu"


def test_the_command(task, tmp_path, tfkit, in_process):
    words = ["compare", task, "--seeds", "1", "--directory", tmp_path / "runs", "-o", tmp_path / "page.html"]
    words += [word for change in SHORT for word in ("--set", change)]
    done = tfkit(*words)
    assert done.code == 0
    assert "One seed gives no spread" in done.out
    assert "small-recipe, seed 0: " in done.err
    again = tfkit(*words)
    assert (again.code, again.err.split()[0]) == (2, "TFK080")
    data = tfkit(*words, "--force", "--json").json()
    assert data["recipes"][0]["scores"].keys() == {"0"}
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("keep")
    assert tfkit("compare", task, "--directory", tmp_path / "mine").code == 2
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["notes"]
    assert tfkit("compare", task, task, "--directory", tmp_path / "two").code == 2


@pytest.mark.exhaustive
def test_a_killed_process_fails_alone_and_is_resumed(task, tmp_path, request):
    """Killed after its first checkpoint, and resumed in this process, a run ends with the score of a run that nobody killed."""
    place, started = tmp_path / "runs", []
    endless = Candidate(task, ("stopping.max_steps=60", "validation.every_steps=60", "keeping.every_steps=2"), "long")

    def kill_first():
        while not list(place.glob("long/seed-0/checkpoints/step-*")):
            time.sleep(0.005)
        holder = json.loads((place / "long" / "seed-0" / "run.lock.json").read_text())
        started.append(holder["process"])
        os.kill(holder["process"], signal.SIGKILL)

    thread = threading.Thread(target=kill_first)
    thread.start()
    found = compare_recipes([endless], place, seeds=[0, 1], workers=2)
    thread.join()
    assert "signal 9" in found.candidates[0].failures[0]
    assert set(found.candidates[0].runs) == {1}
    trained = request.getfixturevalue("in_process")
    resumed = compare_recipes([endless], place, seeds=[0, 1], workers=1).candidates[0]
    assert (resumed.failures, trained) == ({}, ["long/seed-0"])
    train(load_recipe(task, [*endless.overrides, "seed=0"]), tmp_path / "whole")
    assert resumed.scores[0] == read_log(tmp_path / "whole" / "log.jsonl")[-1].nll
    assert subprocess.run(["kill", "-0", str(started[0])], capture_output=True, check=False).returncode
