"""`cuda_graphs: true` with a stand-in for the device: a pass that is recorded once for each shape of a batch trains as an
ordinary one, dropout included, and a run resumes exactly."""

import json

import pytest
import torch
from safetensors.torch import load_file

import graph_stand_in
from tfkit import InputError, TrainingError, load_recipe
from tfkit.generate import step_graphs
from tfkit.nn.runtime import inputs as input_rules
from tfkit.train import resume, train
from tfkit.train.captured import CapturedPasses, check_captured
from tfkit.train.step import TrainStep

CHANGES = ["cuda_graphs=true", "batching.accumulate=2", "clip_norm=1.0", "stopping.max_steps=9", "validation.every_steps=9"]


@pytest.fixture
def device(monkeypatch):
    """Chooses what stands in for recordings on a CUDA device, where nothing reads a number; None for ordinary passes over the
    same batches."""

    def choose(capture):
        monkeypatch.setattr(step_graphs, "cuda_graph", capture)
        monkeypatch.setattr("tfkit.train.step.CapturedPasses", CapturedPasses if capture else lambda *parts: None)
        monkeypatch.setattr("tfkit.train.session.check_device", lambda device: None)
        monkeypatch.setattr("tfkit.train.step.check_captured", lambda *facts: None)
        monkeypatch.setattr(input_rules, "_unread", lambda tensor: True)
        monkeypatch.setattr("tfkit.data.batch_shapes.MAX_SHAPES", 3)

    return choose


def result(run):
    losses = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    weights = load_file(next((run / "models").glob("step-*")) / "model.safetensors")
    return [entry["loss"] for entry in losses if entry["kind"] == "step"], weights


@pytest.mark.parametrize("changes", [[], ["teacher_forcing={kind: constant, ratio: 0.7}"], ["batching.pack=true"]])
def test_a_recorded_pass_trains_as_an_ordinary_one(changes, task, tmp_path, device):
    recipe = load_recipe(task, [*CHANGES, *changes])
    device(None)
    train(recipe, tmp_path / "plain")
    recordings = []

    def capture(run):
        recordings.append(run)
        return graph_stand_in.capture(run)

    device(capture)
    train(recipe, tmp_path / "recorded")
    (losses, weights), (recorded, of_recorded) = result(tmp_path / "plain"), result(tmp_path / "recorded")
    assert recorded == losses
    assert len(set(losses)) == 9
    assert all(torch.equal(weights[name], of_recorded[name]) for name in weights)
    assert 1 <= len(recordings) <= 3


def test_a_run_resumes_exactly(task, tmp_path, device):
    device(graph_stand_in.capture)
    train(load_recipe(task, CHANGES), tmp_path / "whole")
    train(load_recipe(task, [*CHANGES, "stopping.max_steps=4"]), tmp_path / "half")
    resume(tmp_path / "half", overrides=["stopping.max_steps=9"])
    assert result(tmp_path / "half")[0] == result(tmp_path / "whole")[0]


def test_a_pass_that_reads_a_number_is_named(task, tmp_path, device, monkeypatch):
    device(graph_stand_in.capture)
    plain = TrainStep._losses

    def reads(self, *arguments):
        sums = plain(self, *arguments)
        return sums._replace(loss=sums.loss * float(sums.nll > 0))

    monkeypatch.setattr(TrainStep, "_losses", reads)
    with pytest.raises(
        TrainingError, match=r"TFK063 the pass of a batch cannot be recorded as a CUDA graph: RuntimeError: a number"
    ):
        train(load_recipe(task, CHANGES), tmp_path / "run")


def test_what_cannot_be_recorded_is_refused(task, tmp_path):
    recipe = load_recipe(task, ["cuda_graphs=true", "activation_checkpointing=true"])
    with pytest.raises(InputError, match="TFK063 CUDA graphs need a CUDA device, and the model is on cpu"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(InputError) as caught:
        check_captured(recipe, torch.device("cpu"), 2, True, 4)
    assert str(caught.value).count(";") == 5  # four between five reasons, one before the fix
    assert "cuda_graphs" in str(caught.value)
