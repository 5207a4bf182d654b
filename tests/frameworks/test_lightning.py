"""Lightning trains a model inside a module of its own, as the guide shows."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

import tfkit

pytestmark = pytest.mark.filterwarnings("ignore")  # Lightning's own advice about workers and loggers


@pytest.fixture
def lightning():
    return pytest.importorskip("lightning")


@pytest.fixture
def task(lightning, shown):
    """The class of the example in the guide."""
    namespace = {}
    block = shown("lightning").partition("\n\nrows =")[0]
    exec(compile(block, "docs/guides/other-tools.md", "exec"), namespace)
    return namespace["Translation"]


def fit(lightning, task, rows, directory, path=None, steps=12):
    trainer = lightning.Trainer(
        max_steps=steps, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=directory,
    )  # fmt: skip
    trainer.fit(task, torch.utils.data.DataLoader(rows, batch_size=16), ckpt_path=path)
    return trainer


@pytest.mark.slow
def test_the_loss_falls_and_a_checkpoint_goes_on(lightning, task, spec, rows, tmp_path):
    batch = {name: torch.stack([row[name] for row in rows]) for name in rows[0]}
    made = task(spec)
    with torch.no_grad():
        before = made.model(**batch).loss
    trainer = fit(lightning, made, rows, tmp_path)
    with torch.no_grad():
        after = made.model(**batch).loss
    assert after < before
    trainer.save_checkpoint(tmp_path / "at-12.ckpt")
    again = task(spec)
    fit(lightning, again, rows, tmp_path, tmp_path / "at-12.ckpt", steps=13)
    fit(lightning, made, rows, tmp_path, tmp_path / "at-12.ckpt", steps=13)
    for name, tensor in made.model.state_dict().items():
        assert torch.equal(again.model.state_dict()[name], tensor), name


@pytest.mark.slow
def test_the_example_of_the_guide_runs(lightning, shown, monkeypatch, tmp_path):
    monkeypatch.chdir(Path(__file__).parents[2])
    block = shown("lightning").replace('"model/"', f'"{tmp_path}/model"').replace("max_steps=20,", "max_steps=3,")
    exec(compile(block, "docs/guides/other-tools.md", "exec"), {"__name__": "guide"})
    assert tfkit.load(tmp_path / "model").spec.name == "transformer-tiny"
