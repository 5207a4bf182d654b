"""A run that was killed, interrupted or stopped resumes and reaches the weights of an undisturbed run, bit for bit."""

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tfkit import InputError, StoreError, load_recipe
from tfkit.train import resume, train
from tfkit.train.checkpoint import checkpoints_in, write_checkpoint
from tfkit.train.trainer import Interrupts

pytestmark = pytest.mark.xdist_group("resume")  # its run is trained once

FILES = ("model", "optimiser", "average")


def same(one: Path, other: Path) -> None:
    """Two runs ended with the same tensors, the same progress and the same log, times aside."""
    for name in FILES:
        mine, theirs = (load_file(checkpoints_in(run / "checkpoints")[-1] / f"{name}.safetensors") for run in (one, other))
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[key], theirs[key]) for key in mine), name
    assert log(one) == log(other)
    states = [json.loads((checkpoints_in(run / "checkpoints")[-1] / "state.json").read_text()) for run in (one, other)]
    for state in states:
        del state["progress"]["seconds"]
    assert states[0] == states[1]


def log(run: Path) -> list[dict]:
    entries = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [{key: value for key, value in entry.items() if key != "seconds"} for entry in entries]


@pytest.mark.exhaustive
def test_fifty_kills_at_random_moments(task, tmp_path):
    script = Path(__file__).parent / "killed_run.py"
    task.write_text(task.read_text().replace("every_steps: 8", "every_steps: 1").replace("max_steps: 24", "max_steps: 40"))
    command = [sys.executable, str(script), str(task), str(tmp_path), "50", "7"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200, check=False, env=environment)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)["found_at"]
    assert len(found) == 50
    assert len(set(found)) > 5, "the kills did not meet the run at different places"
    same(tmp_path / "undisturbed", tmp_path / "killed")


CHANGES = [
    [],
    ["batching.accumulate=3"],
    ["average=null", "optimiser=adamw", "clip_norm=0.5"],
    ["model.defaults.dropout=0.3", "activation_checkpointing=true", "keeping.every_steps=500"],
    ["precision=bfloat16"],
    ["optimiser={kind: sgd, momentum: 0.9}", "schedule={kind: halving, peak: 1.0, start: 8, every: 5}"],
    ["optimiser=adadelta", "schedule={kind: constant, peak: 1.0}"],
]


@pytest.mark.exhaustive
@pytest.mark.parametrize("changes", CHANGES)
def test_half_and_half_is_whole(task, tmp_path, changes):
    train(load_recipe(task, changes), tmp_path / "whole")
    train(load_recipe(task, [*changes, "stopping.max_steps=11"]), tmp_path / "half")
    outcome = resume(tmp_path / "half", overrides=["stopping.max_steps=24"])
    assert outcome.progress.step == 24
    assert outcome.model.is_dir()
    places = [tmp_path / run / "checkpoints" / "step-24" for run in ("whole", "half")]
    names = [sorted(path.name for path in place.glob("*.safetensors")) for place in places]
    assert names[0] == names[1]
    for name in names[0]:
        mine, theirs = (load_file(place / name) for place in places)
        assert all(torch.equal(mine[key], theirs[key]) for key in mine)
    steps = [[entry for entry in log(tmp_path / run) if entry["kind"] == "step"] for run in ("whole", "half")]
    assert steps[0] == steps[1]


@pytest.mark.slow
def test_half_and_half_is_whole_when_onednn_multiplies(task, tmp_path, onednn_products):
    test_half_and_half_is_whole(task, tmp_path, [])
    assert len(onednn_products) > 24 * 3 * 10


@pytest.mark.slow
def test_two_runs_are_the_same(task, tmp_path, whole):
    train(load_recipe(task), tmp_path / "again")
    same(whole, tmp_path / "again")


def test_a_signal_that_is_ignored_stays_ignored():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with Interrupts() as interrupts:
            os.kill(os.getpid(), signal.SIGHUP)
            assert not interrupts.requested
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_a_signal_that_something_else_hears_is_left_to_it(monkeypatch):
    """Python knows such a handler as None, and could not put it back."""
    monkeypatch.setattr(signal, "getsignal", lambda number: None)
    before = signal.signal(signal.SIGTERM, signal.SIG_DFL)
    try:
        with Interrupts():
            pass
    finally:
        signal.signal(signal.SIGTERM, before)


def test_going_on_with_a_finished_run_changes_nothing(whole):
    before = {path: path.stat().st_mtime_ns for path in whole.rglob("*.safetensors")}
    outcome = resume(whole)
    assert outcome.progress.step == outcome.progress.validated == 24
    assert outcome.model.is_dir()
    assert {path: path.stat().st_mtime_ns for path in whole.rglob("*.safetensors")} == before


@pytest.fixture
def listening():
    """A process started in the background may ignore Ctrl-C, and then so does training."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.slow
@pytest.mark.usefixtures("listening")
def test_ctrl_c_saves_and_goes_on(task, tmp_path, whole):
    class Interrupt:
        """Presses Ctrl-C in the middle of a step."""

        def __getattr__(self, name):
            return lambda *arguments: None

        def on_step_end(self, step):
            if step.step == 9:
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(0.01)

    with pytest.raises(KeyboardInterrupt):
        train(load_recipe(task, ["keeping.every_steps=500"]), tmp_path / "stopped", callbacks=[Interrupt()])
    assert [path.name for path in checkpoints_in(tmp_path / "stopped" / "checkpoints")] == ["step-9"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    resume(tmp_path / "stopped", overrides=["keeping.every_steps=8"])
    same(whole, tmp_path / "stopped")


def test_a_checkpoint_is_replaced_whole_or_not_at_all(whole, monkeypatch):
    """The one at the end of a run is written again if the run resumes for a validation only."""
    path, names = whole / "checkpoints" / "step-24", []
    rename = Path.rename

    def refuse(draft, target):
        names.append(draft.name)
        if draft.suffix == ".draft":
            raise OSError("no more of it")
        return rename(draft, target)

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", refuse)
        with pytest.raises(StoreError, match=r"TFK081 .*no more of it"):
            write_checkpoint(path, {"model.safetensors": {}}, {})
    assert len(names) == 3
    old = whole / "checkpoints" / ".step-24.abc.old"
    old.mkdir()
    path.rename(old / path.name)  # as a kill between the two renames leaves it
    assert resume(whole, overrides=["stopping.max_steps=25"]).progress.step == 25
    assert not list((whole / "checkpoints").glob(".step-*"))


def test_the_last_line_of_the_log_where_it_was_cut_off_is_left_out(whole):
    entries = log(whole)
    with (whole / "log.jsonl").open("ab") as file:
        file.write(b'{"kind": "st')
    resume(whole)
    assert log(whole) == entries


@pytest.mark.slow
@pytest.mark.parametrize(
    "change",
    [
        "model.defaults.dropout=0.7",
        "data.source=/nonexistent/other.en",
        "data.held_out=5",
        "data.held_out=12",
        "tokeniser.vocab_size=90",
        "pretrained=/nonexistent",
        "validation.beams=4",
        "batching.tokens=128",
        "batching.tokens=64",
        "seed=1",
        "optimiser.eps=1e-8",
        "loss.label_smoothing=0.0",
        "average=null",
        "validation.metric=bleu",
    ],
)
def test_overrides_that_affect_weights_or_nothing_are_refused(whole, change):
    recipe = (whole / "recipe.yaml").read_bytes()
    with pytest.raises(InputError, match=f"TFK111 a resumed run keeps its `{change.split('.')[0].split('=')[0]}`"):
        resume(whole, overrides=["stopping.max_steps=30", change])
    assert (whole / "recipe.yaml").read_bytes() == recipe


def test_allowed_changes_are_used_and_saved(whole):
    changes = ["stopping.max_steps=26", "keeping.last=1", "validation.every_steps=5", "name=other", "keeping.every_steps=3"]
    assert resume(whole, overrides=changes).progress.step == 26
    recipe = load_recipe(whole / "recipe.yaml")
    assert (recipe.stopping.max_steps, recipe.keeping.last, recipe.validation.every_steps, recipe.name) == (26, 1, 5, "other")
    assert [path.name for path in checkpoints_in(whole / "checkpoints")] == ["step-26"]


def test_a_directory_without_a_run_is_reported(tmp_path):
    with pytest.raises(InputError, match=r"TFK111 .*holds no run"):
        resume(tmp_path)
