"""A run on each kind of data of BERT resumes within an epoch and reaches the weights of an undisturbed run, bit for bit."""

import pytest
import torch
from safetensors.torch import load_file

from encoder_tasks import FILES, recipe_for
from tfkit import load_recipe
from tfkit.train import resume, train

SETTINGS = {
    "pairs": ["parameters={freeze: [tokens.position], rates: {out: 2}, layer_decay: 0.8}"],
    "masked_pairs": ["data.masking=spans"],
}


@pytest.mark.slow
@pytest.mark.parametrize("kind", sorted(FILES))
def test_half_and_half_is_whole(tmp_path, kind):
    path = recipe_for(tmp_path, kind, steps=14)
    changes = ["model.defaults.dropout=0.1", "validation.every_steps=7", *SETTINGS.get(kind, [])]
    train(load_recipe(path, changes), tmp_path / "whole")
    train(load_recipe(path, [*changes, "stopping.max_steps=4"]), tmp_path / "half")
    resume(tmp_path / "half", overrides=["stopping.max_steps=14"])
    places = [tmp_path / run / "checkpoints" / "step-14" for run in ("whole", "half")]
    for name in ("model.safetensors", "optimiser.safetensors"):
        mine, theirs = (load_file(place / name) for place in places)
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[key], theirs[key]) for key in mine), name
