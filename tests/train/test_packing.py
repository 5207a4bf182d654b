"""Packed batches: the rows of a corpus as documents of fewer rows, with the loss and the gradients of the rows alone."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import yaml
from safetensors.torch import load_file

from tfkit import InputError, load_catalogue, load_recipe
from tfkit.cli import main
from tfkit.data import Packing
from tfkit.text import model_in
from tfkit.train import resume, train
from tfkit.train.step import TrainStep
from translation_task import write_task

DECODER = """\
tfkit: 1
name: small
defaults:
  {d_model: 16, vocab_size: 50, pad_id: 0, position: rotary_half, placement: pre, norm: layer_norm,
   attention: {num_heads: 2}, ffn: {d_ff: 32, activation: relu}}
nodes:
  tokens: {kind: tokens, end_id: 2}
  body: {kind: stack, input: tokens, num_layers: 1, causal: CAUSAL}
  logits: {kind: token_logits, input: body, share: tokens}
outputs: [logits]
"""


def recipe_for(folder, kind="parallel", **batching):
    path = write_task(folder)
    recipe = yaml.safe_load(path.read_text())
    if kind != "parallel":
        recipe["data"] = {"kind": kind, "text": "train.src", "held_out": 12}
        (folder / "small.yaml").write_text(DECODER.replace("CAUSAL", str(kind != "masked").lower()))
    recipe["batching"] = {"tokens": 120, "max_length": 40, "pack": True, **batching}
    path.write_text(yaml.safe_dump(recipe))
    return path


def lengths_of(rows, seed=0):
    draw = np.random.default_rng(seed)
    return {side: draw.integers(1, 30, rows).astype(np.int32) for side in ("source", "target")}


def test_an_epoch_holds_every_row_once_and_no_row_of_a_batch_is_too_long():
    lengths = lengths_of(500)
    packing = Packing.of(lengths, 160, 40)
    epoch = packing.epoch(3, 1)
    assert sorted(np.concatenate(epoch.batches).tolist()) == list(range(500))
    assert (packing.rows, packing.width) == (4, 40)
    for batch in epoch.batches:
        bins = packing._bins()
        places = [bins.place(np.array([lengths["source"][row], lengths["target"][row]])) for row in batch]
        assert None not in places
        assert (bins.room >= 0).all()
    assert epoch.padding < 0.2
    again, other = packing.epoch(3, 1), packing.epoch(3, 2)
    assert all(np.array_equal(one, two) for one, two in zip(epoch.batches, again.batches, strict=True))
    assert not np.array_equal(epoch.batches[0], other.batches[0])
    assert Packing.of(lengths, 10, 8).width == 29  # a longer row has a row of its own
    assert sorted(np.concatenate(Packing.of(lengths, 10, 8).epoch(0, 1).batches).tolist()) == list(range(500))


@pytest.mark.parametrize("kind", ["parallel", "texts", "masked"])
def test_the_loss_and_the_gradients_are_those_of_the_rows_alone(kind, tmp_path, monkeypatch):
    recipe = load_recipe(recipe_for(tmp_path, kind), ["stopping.max_steps=1", "average=null"])
    batches = []

    def evaluated(step, batch):
        step.model.zero_grad()
        logits = step.model(**batch.arguments)[step.roles.output]
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1), batch.labels.flatten(), reduction="sum")
        loss.backward()
        return loss.item(), [parameter.grad.clone() for parameter in step.model.parameters()]

    def launch(step, tell):
        step.model.eval().double()  # no dropout
        packing = step.batches.packing
        for number in range(step.batches.count(1)):
            packed, rows = step.batches.batch(1, number), step.batches.epoch(1).batches[number].tolist()
            alone = step.task.batch(step.data.train, rows, np.random.Generator(np.random.PCG64([recipe.seed, 1, number])), 1)
            whole = packing.packed(alone, rows, step.task, True)
            loss, gradients = evaluated(step, alone)
            for batch in (packed, whole):
                packed_loss, packed_gradients = evaluated(step, batch)
                assert packed_loss == pytest.approx(loss, rel=1e-10)
                for one, two in zip(packed_gradients, gradients, strict=True):
                    assert torch.allclose(one, two, rtol=1e-8, atol=1e-10)
                assert (batch.target_tokens, batch.source_tokens) == (alone.target_tokens, alone.source_tokens)
            assert len(packed.labels) <= packing.rows
            assert {tuple(ids.shape) for ids in whole.inputs.values()} == {(packing.rows, packing.width)}
            batches.append(packed)
        raise KeyboardInterrupt

    monkeypatch.setattr(TrainStep, "launch", launch)
    with pytest.raises(KeyboardInterrupt):
        train(recipe, tmp_path / "run")
    assert len(batches) > 1
    assert max(int(batch.documents[next(iter(batch.documents))].max()) for batch in batches) > 1


def test_a_packed_run_goes_on_exactly(tmp_path):
    path = recipe_for(tmp_path)
    train(load_recipe(path), tmp_path / "whole")
    train(load_recipe(path, ["stopping.max_steps=10"]), tmp_path / "halves")
    resume(tmp_path / "halves", overrides=["stopping.max_steps=24"])
    one, two = (load_file(model_in(tmp_path / name) / "model.safetensors") for name in ("whole", "halves"))
    assert all(torch.equal(one[name], two[name]) for name in one)


@pytest.mark.parametrize(
    ("kind", "changes", "message"),
    [
        ("language", [], "rows of running text are full"),
        ("parallel", ["teacher_forcing={kind: constant, ratio: 0.5}"], "`teacher_forcing` predicts the tokens of whole rows"),
        ("classification", [], "rows of data of kind `classification` have labels of their own"),
    ],
)
def test_what_cannot_be_packed_is_refused_by_check_and_train(kind, changes, message, tmp_path, capsys):
    path = recipe_for(tmp_path, kind if kind != "classification" else "masked")
    if kind == "classification":
        text = path.read_text().replace("kind: masked", "kind: classification").replace("text:", "table:")
        path.write_text(text)
    assert main(["check", str(path), *(word for change in changes for word in ("--set", change))]) == 2
    output = capsys.readouterr()
    assert message in output.err + output.out
    assert "batching.pack" in output.err + output.out


def test_a_model_that_mixes_documents_is_refused(tmp_path, capsys):
    path = recipe_for(tmp_path, "texts")
    spec = (tmp_path / "small.yaml").read_text()
    (tmp_path / "small.yaml").write_text(
        spec.replace(
            "{kind: stack, input: tokens, num_layers: 1, causal: true}", "{kind: rnn, input: tokens, d_state: 16, cell: gru}"
        )
        .replace("position: rotary_half, placement: pre, norm: layer_norm,", "position: none")
        .replace("   attention: {num_heads: 2}, ffn: {d_ff: 32, activation: relu}}", "  }")
    )
    with pytest.raises(InputError, match="mixes tokens by more than attention"):
        train(load_recipe(path), tmp_path / "run", catalogue=load_catalogue())
    assert main(["check", str(path)]) == 2
    assert "batching.pack" in capsys.readouterr().err
