"""Hugging Face's Trainer trains a model as it is: the loss falls, checkpoints are safetensors, a run resumes from one."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import tfkit

pytest.importorskip("accelerate", reason="Trainer needs accelerate")
transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument")  # the Trainer's default, where there is no GPU


@pytest.fixture
def trained(tmp_path, rows, spec):
    """A Trainer that ran to a step, whose checkpoints are in `tmp_path`."""

    def run(steps, resume=None, **more):
        arguments = transformers.TrainingArguments(
            str(tmp_path), max_steps=steps, per_device_train_batch_size=16, learning_rate=1e-2, lr_scheduler_type="constant",
            logging_steps=4, save_steps=4, report_to=[], remove_unused_columns=False, use_cpu=True, seed=0, disable_tqdm=True,
            dataloader_pin_memory=False, **more,
        )  # fmt: skip
        model = tfkit.build(spec)
        trainer = transformers.Trainer(model=model, args=arguments, train_dataset=rows, eval_dataset=rows[:16])
        trainer.train(resume_from_checkpoint=resume)
        return trainer

    return run


@pytest.mark.slow
def test_the_loss_falls_and_is_evaluated(trained):
    trainer = trained(16, eval_strategy="steps", eval_steps=4, gradient_accumulation_steps=2, load_best_model_at_end=True)
    history = trainer.state.log_history
    losses = [entry["loss"] for entry in history if "loss" in entry]
    judged = [entry["eval_loss"] for entry in history if "eval_loss" in entry]
    assert losses[-1] < losses[0]
    assert judged[-1] < judged[0]
    assert isinstance(trainer.model, tfkit.Model)


@pytest.mark.slow
def test_a_checkpoint_is_the_model_and_a_run_goes_on_from_it(trained, tmp_path):
    whole = trained(8).model
    weights = load_file(tmp_path / "checkpoint-8" / "model.safetensors")
    assert weights.keys() == whole.state_dict().keys()
    assert all(torch.equal(weights[name], tensor) for name, tensor in whole.state_dict().items())
    again = trained(8, resume=str(tmp_path / "checkpoint-4")).model
    assert all(torch.equal(weights[name], tensor) for name, tensor in again.state_dict().items())


@pytest.mark.slow
def test_predictions_are_the_logits(trained, rows):
    trainer = trained(4)
    found = trainer.predict(rows[:8])
    batch = {name: torch.stack([row[name] for row in rows[:8]]) for name in rows[0]}
    with torch.no_grad():
        want = trainer.model.eval()(**batch)
    assert torch.equal(torch.from_numpy(found.predictions), want.logits)
    assert found.metrics["test_loss"] == pytest.approx(want.loss.item())


@pytest.mark.slow
def test_the_trainer_of_the_guide_runs(shown, monkeypatch, tmp_path):
    monkeypatch.chdir(Path(__file__).parents[2])
    block = shown("transformers").replace('"trainer/"', f'"{tmp_path}/trainer"').replace('"model/"', f'"{tmp_path}/model"')
    exec(compile(block, "docs/guides/other-tools.md", "exec"), {})
    assert tfkit.load(tmp_path / "model").spec.name == "transformer-tiny"
