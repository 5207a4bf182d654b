"""Training rows with other pieces in every epoch: exact resumption, plain validation, and what is refused."""

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from kinds_task import recipe_for
from tfkit import InputError, SpecError, build, load_recipe, load_spec
from tfkit.data import read_data, read_tokenisers
from tfkit.train import resume, train
from tfkit.train.checkpoint import checkpoints_in
from tfkit.train.step import TrainStep

pytestmark = pytest.mark.xdist_group("subwords")
DROPOUT = ["tokeniser.dropout=0.3", "validation.every_steps=10"]


def test_a_run_with_dropout_resumes_within_an_epoch_with_the_same_bits(task, tmp_path):
    train(load_recipe(task, DROPOUT), tmp_path / "whole")
    train(load_recipe(task, [*DROPOUT, "stopping.max_steps=11"]), tmp_path / "halves")
    resume(tmp_path / "halves", overrides=["stopping.max_steps=24"])
    for name in ("model", "optimiser", "average"):
        mine, theirs = (load_file(checkpoints_in(tmp_path / run / "checkpoints")[-1] / f"{name}.safetensors")
                        for run in ("whole", "halves"))  # fmt: skip
        assert all(torch.equal(mine[key], theirs[key]) for key in mine), name
    recipe = load_recipe(tmp_path / "whole" / "recipe.yaml")
    tokenisers = read_tokenisers(tmp_path / "whole", ("source", "target"))
    data = read_data(recipe, tmp_path / "whole" / "data", tokenisers)
    task = TrainStep(build(load_spec(tmp_path / "whole" / "spec.yaml")), recipe, data).task
    draw, rows = np.random.default_rng(0), list(range(20))
    plain, first, again, second = (task.batch(data.train, rows, draw, epoch) for epoch in (0, 1, 1, 2))
    assert plain.source_tokens == sum(map(len, data.train.rows("source", rows)))
    assert torch.equal(first.labels, again.labels)
    assert len({plain.target_tokens, first.target_tokens, second.target_tokens}) == 3
    one_by_one = [task.batch(data.train, [row], draw, 1).labels[0] for row in rows]
    for row, labels in zip(first.labels, one_by_one, strict=True):
        assert torch.equal(row[: len(labels)], labels)
    ids = first.labels[0][first.labels[0] >= 0].tolist()
    assert tokenisers["target"].decode(ids) == tokenisers["target"].decode(data.train.rows("target", [0])[0].tolist())


def test_unigram_sampling_and_masked_rows_train(tmp_path):
    path = recipe_for(tmp_path, "masked")
    changes = ["tokeniser={kind: unigram, vocab_size: 300, sampling: {alpha: 0.1}}", "stopping={max_steps: 2}"]
    train(load_recipe(path, changes), tmp_path / "run")
    train(load_recipe(path, [*changes, f"pretrained={tmp_path / 'run'}"]), tmp_path / "tuned")
    assert load_recipe(tmp_path / "tuned" / "recipe.yaml").tokeniser.options.sampling.alpha == 0.1


def test_what_cannot_be_sampled_is_refused(task, tmp_path):
    with pytest.raises(SpecError, match=r"unknown key `dropout`|does not belong"):
        load_recipe(task, ["tokeniser={kind: unigram, dropout: 0.1}"])
    with pytest.raises(SpecError, match=r"tokeniser.dropout: at most 1"):
        load_recipe(task, ["tokeniser.dropout=2"])
    with pytest.raises(InputError, match=r"TFK108 tokeniser.dropout: batches have few lengths with `compile`"):
        train(load_recipe(task, ["tokeniser.dropout=0.1", "compile=true"]), tmp_path / "run")
    folder = tmp_path / "language"
    folder.mkdir()
    with pytest.raises(InputError, match=r"TFK108 tokeniser.dropout: rows of kind `language` have labels or a length"):
        train(load_recipe(recipe_for(folder, "language"), ["tokeniser.dropout=0.1"]), tmp_path / "run")
    assert not (tmp_path / "run").exists()
