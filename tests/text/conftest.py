import pytest

from command_line import tfkit as tfkit_command, typed, usual_width
from forced import decoded
from tfkit import load_recipe
from tfkit.train import train
from translation_task import write_task

__all__ = ["decoded", "tfkit_command", "typed", "usual_width"]


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A run that has learnt to translate the task, with its text beside it."""
    folder = tmp_path_factory.mktemp("trained")
    changes = [
        "stopping.max_steps=400", "validation.metric=bleu", "validation.beams=3", "validation.every_steps=200",
        "keeping.every_steps=100", "keeping.last=3", "model.defaults.d_model=32", "model.defaults.dropout=0.0",
        "batching.tokens=512", "loss.label_smoothing=0.0",
    ]  # fmt: skip
    train(load_recipe(write_task(folder, 600), changes), folder / "run")
    return folder / "run"
