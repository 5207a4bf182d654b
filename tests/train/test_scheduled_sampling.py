"""Scheduled sampling against loops over full forward passes; runs with it resume bit for bit."""

import math

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

import tfkit
from encoder_tasks import logged
from tfkit import load_recipe
from tfkit.data import NO_LABEL, Batch, Roles
from tfkit.recipe import recipe_of
from tfkit.train import resume, train
from tfkit.train.checkpoint import checkpoints_in
from tfkit.train.scheduled_sampling import ScheduledSampling
from translation_task import write_task

RECURRENT = """\
tfkit: 1
name: small
defaults: {d_model: 16, vocab_size: 50, pad_id: 0, dropout: 0.1}
nodes:
  source: {kind: tokens}
  target: {kind: tokens, share: source}
  encoder: {kind: rnn, input: source, cell: gru, d_state: 16}
  decoder:
    {kind: rnn, input: target, memory: encoder, cell: gru, d_state: 16,
     cross_attention: {attend: before_cell, score: additive}}
  logits: {kind: token_logits, input: decoder, share: source}
outputs: [logits]
"""
TRANSFORMER = """\
tfkit: 1
name: small
defaults: {d_model: 16, vocab_size: 50, pad_id: 0, dropout: 0.1, position: sinusoidal, placement: pre, norm: layer_norm}
nodes:
  source: {kind: tokens}
  target: {kind: tokens, share: source}
  encoder: {kind: stack, input: source, num_layers: 1, attention: {num_heads: 2}, ffn: {d_ff: 32, activation: relu}}
  decoder:
    {kind: stack, input: target, memory: encoder, num_layers: 1, causal: true, attention: {num_heads: 2},
     ffn: {d_ff: 32, activation: relu}}
  logits: {kind: token_logits, input: decoder, share: source}
outputs: [logits]
"""
SPECS = {"transformer": TRANSFORMER, "recurrent": RECURRENT}
B, S, L = 4, 6, 7
LENGTHS = torch.tensor([7, 5, 3, 1])


@pytest.fixture(params=SPECS)
def kind(request):
    return request.param


def sampling_of(kind, ratio, catalogue, predicted="best"):
    text = (
        f"{{tfkit: 1, name: x, model: x.yaml, stopping: {{max_steps: 9}}, teacher_forcing: {{kind: constant, ratio: {ratio},"
        f" predicted: {predicted}}}}}"
    )
    model = tfkit.build(tfkit.parse_spec(SPECS[kind], catalogue), catalogue, seed=5).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(3.0)  # so that predictions differ from one another
    return ScheduledSampling(model, recipe_of(text, "x.yaml"), Roles("source", "target", "logits"))


@pytest.fixture
def batch():
    draw = np.random.default_rng(1)
    source, target = (torch.from_numpy(draw.integers(5, 50, (B, n))) for n in (S, L))
    hidden = torch.arange(L) >= LENGTHS[:, None]
    lengths = {"source": torch.tensor([S] * B), "target": LENGTHS}
    inputs = {"source": source, "target": target.masked_fill(hidden, 0)}
    return Batch(inputs, lengths, target.masked_fill(hidden, NO_LABEL), B * S, int(LENGTHS.sum()))


def predictions(sampling, batch, given):
    """By loops: the most probable next token after every prefix, from a full forward pass over it."""
    model = sampling.model.eval()
    found = torch.zeros_like(given)
    with torch.no_grad():
        for row in range(B):
            source = batch.inputs["source"][row : row + 1]
            for t in range(int(LENGTHS[row])):
                logits = model(source=source, target=given[row : row + 1, : t + 1])["logits"][0, -1].tolist()
                found[row, t] = max(range(1, 50), key=logits.__getitem__)
    return found


def test_replaced_tokens_are_the_predictions_of_the_model(kind, batch, catalogue):
    sampling = sampling_of(kind, 0.4, catalogue)
    sampling.model.train()
    mixed = sampling.batch(batch, 1, 1, 0)
    assert sampling.model.training
    assert torch.equal(mixed.labels, batch.labels)
    assert torch.equal(mixed.inputs["source"], batch.inputs["source"])
    given, got = batch.inputs["target"], mixed.inputs["target"]
    # A recurrent decoder predicts from the tokens that it read, a Transformer from the given ones.
    predicted = predictions(sampling, batch, got if kind == "recurrent" else given)
    changed = 0
    for row in range(B):
        for t in range(L):
            if got[row, t] != given[row, t]:
                assert 0 < t < LENGTHS[row]
                assert got[row, t] == predicted[row, t - 1]
                changed += 1
    assert 3 <= changed <= 9  # of 12


def test_tokens_are_drawn_from_the_distribution(kind, batch, catalogue):
    """By loops over prefixes: a token takes its probability's share of [0, 1) after the tokens with smaller ids."""
    sampling = sampling_of(kind, 0.0, catalogue, "drawn")
    got, reference = sampling.batch(batch, 1, 2, 3).inputs["target"], batch.inputs["target"]
    draw = np.random.Generator(np.random.PCG64([sampling.seed, 2, 3, 1]))
    _, uniform = draw.random((B, L)), draw.random((B, L))
    read, model, best = (
        got if kind == "recurrent" else reference,
        sampling.model.eval(),
        predictions(sampling, batch, reference),
    )
    for row in range(B):
        for t in range(int(LENGTHS[row]) - 1):
            with torch.no_grad():
                outputs = model(source=batch.inputs["source"][row : row + 1], target=read[row : row + 1, : t + 1])
            shares = [math.exp(logit) for logit in outputs["logits"][0, -1].tolist()]
            shares[0], total, token = 0.0, sum(shares[1:]), 0  # padding is never predicted
            below = 0.0
            while below + shares[token] <= uniform[row, t] * total:
                below, token = below + shares[token], token + 1
            assert got[row, t + 1] == token
    assert not torch.equal(got[:, 1:], best[:, :-1])


def test_without_teacher_forcing_every_token_is_predicted(kind, batch, catalogue):
    sampling = sampling_of(kind, 0.0, catalogue)
    got = sampling.batch(batch, 1, 1, 0).inputs["target"]
    predicted = predictions(sampling, batch, got if kind == "recurrent" else batch.inputs["target"])
    for row in range(B):
        assert got[row, 0] == batch.inputs["target"][row, 0]
        assert torch.equal(got[row, 1 : LENGTHS[row]], predicted[row, : LENGTHS[row] - 1])
        assert not got[row, LENGTHS[row] :].any()


def test_the_draw_depends_on_the_place_in_the_data_alone(kind, batch, catalogue):
    sampling = sampling_of(kind, 0.5, catalogue)
    one = sampling.batch(batch, 1, 2, 3).inputs["target"]
    state = torch.get_rng_state()
    assert torch.equal(sampling.batch(batch, 9, 2, 3).inputs["target"], one)
    assert torch.equal(torch.get_rng_state(), state)
    assert any(not torch.equal(sampling.batch(batch, 1, 2, number).inputs["target"], one) for number in (4, 5, 6))
    assert sampling_of(kind, 1.0, catalogue).batch(batch, 1, 2, 3) is batch


def weights(run):
    return load_file(checkpoints_in(run / "checkpoints")[-1] / "model.safetensors")


@pytest.mark.slow
def test_runs_resume_bit_for_bit_and_ratio_1_changes_nothing(kind, task, tmp_path):
    (task.parent / "small.yaml").write_text(SPECS[kind])
    short = ["stopping.max_steps=8", "validation.every_steps=100", "batching.accumulate=2"]
    falling = [*short, "teacher_forcing={kind: linear, start: 0.9, end: 0.1, steps: 8}"]
    train(load_recipe(task, falling), tmp_path / "whole")
    train(load_recipe(task, [*falling, "stopping.max_steps=3"]), tmp_path / "half")
    resume(tmp_path / "half", overrides=["stopping.max_steps=8"])
    train(load_recipe(task, short), tmp_path / "plain")
    train(load_recipe(task, [*short, "teacher_forcing={kind: constant, ratio: 1.0}"]), tmp_path / "forced")
    whole, half, plain, forced = (weights(tmp_path / name) for name in ("whole", "half", "plain", "forced"))
    assert all(torch.equal(half[name], tensor) for name, tensor in whole.items())
    assert all(torch.equal(forced[name], tensor) for name, tensor in plain.items())
    assert any(not torch.equal(whole[name], tensor) for name, tensor in plain.items())


def test_autocast(kind, task, tmp_path):
    (task.parent / "small.yaml").write_text(SPECS[kind])
    changes = ["stopping.max_steps=3", "precision=bfloat16", "teacher_forcing={kind: constant, ratio: 0.2}"]
    assert train(load_recipe(task, changes), tmp_path / "run").progress.step == 3


def test_a_language_model(task, tmp_path):
    spec = TRANSFORMER.replace("  source: {kind: tokens}\n", "").replace("share: source}", "vocab_size: 50}", 1)
    spec = "\n".join(line for line in spec.splitlines() if "encoder: {" not in line).replace("memory: encoder, ", "")
    (task.parent / "small.yaml").write_text(spec.replace("share: source", "share: target"))
    changes = [
        f"data={{kind: language, text: {task.parent / 'train.trg'}, held_out: 12}}",
        "stopping.max_steps=3",
        "batching.tokens=512",
    ]
    outcome = train(load_recipe(task, [*changes, "teacher_forcing={kind: inverse_sigmoid, k: 1}"]), tmp_path / "run")
    assert outcome.progress.step == 3


PROCESSES = {"ddp-transformer": "transformer", "fsdp-transformer": "transformer", "ddp-recurrent": "recurrent"}


@pytest.fixture(scope="module")
def shared_runs(tmp_path_factory, fork_jobs):
    """Runs of one process and of two, of which one repeats a batch in each step; one run is refused."""
    folder, jobs = tmp_path_factory.mktemp("sampling"), []
    recipe = str(write_task(folder))
    changes = ["teacher_forcing={kind: linear, start: 0.9, end: 0.1, steps: 6}", "batching.accumulate=3"]
    changes += ["stopping.max_steps=6", "validation.every_steps=6"]
    for kind, text in SPECS.items():
        (folder / f"{kind}.yaml").write_text(text)
        train(load_recipe(recipe, [*changes, f"model={folder}/{kind}.yaml"]), folder / f"one-{kind}")
    for name in (*PROCESSES, "fsdp-recurrent"):
        mode, kind = name.split("-")
        overrides = [*changes, f"model={folder}/{kind}.yaml"]
        jobs.append({"recipe": recipe, "directory": str(folder / name), "overrides": overrides, "fsdp": mode == "fsdp"})
    found, code, words = fork_jobs(jobs, folder)
    assert code == 0, words
    assert found == [[[6], [6], [6], ["TFK118", by_other]] for by_other in (False, True)], words
    assert not (folder / "fsdp-recurrent").exists()
    return folder


@pytest.mark.slow
@pytest.mark.xdist_group("several_processes")
@pytest.mark.parametrize("name", PROCESSES)
def test_two_processes_train_as_one(shared_runs, name):
    """The losses differ by the rounding of sums in another order; another replaced token would change them more."""
    one, two = (logged(shared_runs / each, "step") for each in (f"one-{PROCESSES[name]}", name))
    assert len(one) == len(two) == 6
    for a, b in zip(one, two, strict=True):
        assert abs(a["nll"] - b["nll"]) <= a["target_tokens"] * torch.finfo(torch.float32).eps / 2 * a["nll"], a["step"]
