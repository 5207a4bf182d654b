"""Frozen parameters keep every bit; the others move as far as the factors of their learning rate say."""

import pytest
import torch

from encoder_tasks import recipe_for
from tfkit import InputError, build, load_recipe, load_spec
from tfkit.data import read_data, read_tokenisers
from tfkit.train import train
from tfkit.train.checkpoint import checkpoints_in, read_checkpoint
from tfkit.train.optimiser import depths_of, matches
from tfkit.train.step import TrainStep

RATE = 1e-3


def moved(folder, *changes):
    """The largest move of a weight of each parameter in one step, over the learning rate. Adam's first step moves a weight by
    the learning rate, if its gradient is much larger than `eps`."""
    path = recipe_for(folder, "masked_pairs", steps=1)
    constant = f"schedule={{kind: constant, peak: {RATE}, warmup_steps: 1}}"
    settings = [constant, "optimiser={kind: adam, eps: 1.0e-15}", "validation.every_steps=1", *changes]
    train(load_recipe(path, settings), folder / "run")
    before = build(load_spec(folder / "run" / "spec.yaml"), seed=0).state_dict()
    after = read_checkpoint(checkpoints_in(folder / "run" / "checkpoints")[-1])[0]["model.safetensors"]
    return {name.removeprefix("nodes."): float((after[name] - before[name]).abs().max()) / RATE for name in before}


def test_frozen_parameters_keep_every_bit(tmp_path):
    found = moved(tmp_path, "parameters={freeze: [tokens, encoder.layers.0, 'encoder.layers.*.norms']}")
    frozen = {name for name, distance in found.items() if distance == 0}
    expected = {name for name in found if name.startswith(("tokens.", "encoder.layers.0.", "encoder.layers.1.norms."))}
    assert frozen == expected
    assert len(expected) > 10


def test_factors_by_pattern_and_layer(tmp_path):
    found = moved(tmp_path, "parameters={rates: {'next.linear': 4, 'n*': 3, tokens: 0.5}, layer_decay: 0.5}")
    expected = {"tokens": 0.5 * 0.5**3, "encoder.layers.0": 0.5**2, "encoder.layers.1": 0.5, "pooled": 1, "transform": 1,
                "words": 1, "next": 4}  # fmt: skip
    for name, distance in found.items():
        factor = next(value for node, value in expected.items() if name.startswith(f"{node}."))
        if not name.endswith("key.bias"):  # its gradient is rounding: softmax ignores it
            assert distance == pytest.approx(factor, rel=1e-3), name


def test_weight_decay_and_factors_are_those_of_torch_groups(tmp_path):
    """A step of torch's AdamW with a group for each parameter."""
    path = recipe_for(tmp_path, "pairs", steps=1)
    recipe = load_recipe(path, ["optimiser={kind: adamw, weight_decay: 0.3}", "parameters={rates: {encoder: 0.2}}"])
    train(recipe, tmp_path / "run")
    data = read_data(recipe, tmp_path / "run" / "data", read_tokenisers(tmp_path / "run", ("target",)))
    spec = load_spec(tmp_path / "run" / "spec.yaml")
    step, copy = TrainStep(build(spec, seed=4), recipe, data), build(spec, seed=4)
    groups = [
        {"params": [each], "lr": 5e-4 * (0.2 if "encoder" in name else 1), "weight_decay": 0.3 if each.dim() > 1 else 0.0}
        for name, each in copy.named_parameters()
    ]
    theirs = torch.optim.AdamW(groups, betas=(0.9, 0.98), eps=1e-9)
    batch = step.batch(0)
    assert step.run().rate == pytest.approx(5e-4)
    torch.nn.functional.cross_entropy(copy(**batch.arguments)["out"], batch.labels).backward()
    theirs.step()
    for name, each in step.model.named_parameters():
        if not name.endswith("key.bias"):  # its gradient is rounding
            torch.testing.assert_close(each, copy.get_parameter(name), rtol=1e-5, atol=2e-6)


def test_layers_are_counted_to_the_output():
    model = build(load_spec("specs/transformer-tiny.yaml", overrides=["encoder.num_layers=3", "decoder.num_layers=2"]))
    found = depths_of(model)
    layers = {name.split(".branches")[0].split(".norms")[0]: depth for name, depth in found.items()}
    assert [layers[f"encoder.layers.{number}"] for number in range(3)] == [5, 4, 3]
    assert [layers[f"decoder.layers.{number}"] for number in range(2)] == [2, 1]
    assert found["source.embedding.weight"] == 6


@pytest.mark.parametrize(
    ("name", "pattern", "expected"),
    [
        ("encoder.layers.1.norms.ffn.weight", "encoder", True),
        ("encoder.layers.1.norms.ffn.weight", "encoder.layers.1", True),
        ("encoder.layers.10.norms.ffn.weight", "encoder.layers.1", False),
        ("encoder.layers.1.norms.ffn.weight", "enc", False),
        ("encoder.layers.1.norms.ffn.weight", "nodes.enc*.layers.*.norms", True),
        ("encoder.layers.1.norms.ffn.weight", "*", True),
        ("encoder.layers.1.norms.ffn.weight", "*.weight", False),
        ("encoder.layers.1.norms.ffn.weight", "encoder.layers.[0-9]", False),
        ("encoder.layers.1.norms.ffn.weight", "encoder.layers.?", False),
        (f"encoder.{'e' * 60}", f"encoder.{'*e' * 60}Z", False),  # backtracking would never end
    ],
)
def test_a_pattern_ends_at_a_dot(name, pattern, expected):
    assert matches(name, pattern) is expected


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ("parameters={freeze: [encodr]}", r"TFK125 parameters.freeze: no parameter of `small-bert` matches `encodr`.* tokens"),
        ("parameters={rates: {encodr: 0.1}}", r"TFK125 parameters.rates: no parameter"),
        ("parameters={freeze: ['*']}", r"TFK125 parameters.freeze: all parameters are frozen"),
    ],
)
def test_wrong_patterns_are_reported(tmp_path, change, message):
    with pytest.raises(InputError, match=message):
        train(load_recipe(recipe_for(tmp_path, "pairs"), [change]), tmp_path / "run")
    assert not (tmp_path / "run").exists()
