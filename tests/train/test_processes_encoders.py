"""Two processes train several outputs, and frozen parameters, as one process does."""

import pytest
import torch

from encoder_tasks import logged, recipe_for
from tfkit import load_recipe
from tfkit.train import train

pytestmark = pytest.mark.xdist_group("several_processes")
CHANGES = [
    "batching.accumulate=2",
    "batching.tokens=200",
    "validation.every_steps=3",
    "loss.weights={next: 0.5}",
    "parameters={freeze: [tokens, encoder.layers.0.norms], layer_decay: 0.9}",
]


@pytest.mark.slow
def test_two_processes_train_as_one(tmp_path, fork_jobs):
    path = recipe_for(tmp_path, "masked_pairs", steps=6)
    train(load_recipe(path, CHANGES), tmp_path / "one")
    jobs = [
        {"recipe": str(path), "directory": str(tmp_path / name), "overrides": CHANGES, "fsdp": name == "fsdp"}
        for name in ("ddp", "fsdp")
    ]
    found, code, words = fork_jobs(jobs, tmp_path)
    assert code == 0, words
    assert found[0] == found[1] == [[6], [6]]
    for name in ("ddp", "fsdp"):
        for kind in ("step", "validation"):
            for a, b in zip(logged(tmp_path / "one", kind), logged(tmp_path / name, kind), strict=True):
                assert a["nll"] == pytest.approx(b["nll"], rel=200 * torch.finfo(torch.float32).eps)
