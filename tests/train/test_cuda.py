"""Training on a CUDA device."""

import json

import pytest
import torch

import graph_stand_in
from tfkit import load_recipe
from tfkit.train import resume, train

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="not run: there is no CUDA device here"),
]
STILL = ["model.defaults.dropout=0.0", "average=null", "stopping.max_steps=5", "validation.every_steps=5"]


def losses(run) -> list[float]:
    entries = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    return [entry["loss"] for entry in entries if entry["kind"] == "step"]


@pytest.mark.parametrize(("precision", "within"), [("float32", 1e-4), ("bfloat16", 3e-2), ("float16", 1e-2)])
def test_the_losses_are_those_of_a_cpu(task, tmp_path, precision, within):
    """Without dropout, whose draws differ; in half types within a few of their last digits."""
    train(load_recipe(task, STILL), tmp_path / "cpu")
    train(load_recipe(task, [*STILL, f"precision={precision}"]), tmp_path / "cuda", device="cuda")
    assert losses(tmp_path / "cuda") == pytest.approx(losses(tmp_path / "cpu"), rel=within)


@pytest.mark.filterwarnings("ignore:.*determinis")  # torch tells of what has no deterministic kernel, and of cuBLAS's setting
def test_a_run_goes_on_where_it_stood(task, tmp_path):
    """With torch's deterministic kernels bit for bit, dropout included, since each batch seeds its own."""
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        train(load_recipe(task, ["stopping.max_steps=12"]), tmp_path / "whole", device="cuda")
        train(load_recipe(task, ["stopping.max_steps=7"]), tmp_path / "half", device="cuda")
        resume(tmp_path / "half", device="cuda", overrides=["stopping.max_steps=12"])
    finally:
        torch.use_deterministic_algorithms(False)
    assert losses(tmp_path / "half") == losses(tmp_path / "whole")


@pytest.mark.filterwarnings("ignore:.*determinis")
@pytest.mark.parametrize("precision", ["float32", "bfloat16", "float16"])
def test_recorded_steps_train_as_ordinary_ones(task, tmp_path, monkeypatch, precision):
    """Over the same batches, dropout included, bit for bit with deterministic kernels."""
    changes = ["cuda_graphs=true", f"precision={precision}", "batching.accumulate=2", "clip_norm=1.0", "stopping.max_steps=12"]
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        train(load_recipe(task, changes), tmp_path / "recorded", device="cuda")
        monkeypatch.setattr("tfkit.train.step.CapturedPasses", lambda *parts: None)
        monkeypatch.setattr("tfkit.train.step.set_rate", graph_stand_in.rounded_rate)
        train(load_recipe(task, changes), tmp_path / "ordinary", device="cuda")
    finally:
        torch.use_deterministic_algorithms(False)
    assert losses(tmp_path / "recorded") == losses(tmp_path / "ordinary")
