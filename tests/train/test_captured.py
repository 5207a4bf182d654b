"""`cuda_graphs: true` with a stand-in for the device: passes that are recorded once for each shape of a batch, and the update,
recorded once, train as ordinary ones, dropout included, and a run resumes exactly."""

import json
from contextlib import nullcontext
from functools import partial

import pytest
import torch
from safetensors.torch import load_file
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

import graph_stand_in
from tfkit import InputError, Recipe, TrainingError, load_recipe
from tfkit.generate import step_graphs
from tfkit.nn.runtime import inputs as input_rules
from tfkit.train import resume, train, validation
from tfkit.train.captured import CapturedPasses, check_captured
from tfkit.train.checkpoint import checkpoints_in
from tfkit.train.optimiser import set_rate
from tfkit.train.step import TrainStep

CHANGES = ["cuda_graphs=true", "batching.accumulate=2", "clip_norm=1.0", "stopping.max_steps=9", "validation.every_steps=9"]


@pytest.fixture
def device(monkeypatch, most_shapes):
    """Chooses what stands in for recordings on a CUDA device, where nothing reads a number; None for ordinary passes over the
    same batches."""

    def choose(capture):
        monkeypatch.setattr(step_graphs, "cuda_graph", capture)
        monkeypatch.setattr("tfkit.train.step.CapturedPasses", CapturedPasses if capture else lambda *parts: None)
        monkeypatch.setattr(validation, "CapturedPasses", lambda *parts: None)
        monkeypatch.setattr("tfkit.train.step.set_rate", set_rate if capture else graph_stand_in.rounded_rate)
        for module in ("session", "step"):
            monkeypatch.setattr(f"tfkit.train.{module}.check_captured", lambda *facts, **named: (True, []))
        monkeypatch.setattr(input_rules, "_unread", lambda tensor: True)
        most_shapes(3)

    return choose


class Callbacks:
    def __init__(self):
        self.texts = []

    def __getattr__(self, name):
        return lambda *facts: None

    def on_warning(self, diagnostics):
        self.texts += [str(diagnostic) for diagnostic in diagnostics if diagnostic.code == "TFK063"]


def result(run):
    """The log without its times, and the last checkpoint: weights, averages, the optimiser and its counters."""
    log = [json.loads(line) for line in (run / "log.jsonl").read_text().splitlines()]
    latest = checkpoints_in(run / "checkpoints")[-1]
    state = json.loads((latest / "state.json").read_text())
    del state["progress"]["seconds"]
    tensors = {(path.name, name): value for path in latest.glob("*.safetensors") for name, value in load_file(path).items()}
    return [{**entry, "seconds": 0} for entry in log], state, tensors


def steps(run):
    return [entry for entry in result(run)[0] if entry["kind"] == "step"]


def check_equal(run, other):
    (log, state, tensors), (others_log, others_state, others_tensors) = result(run), result(other)
    assert others_log == log
    assert others_state == state
    assert others_tensors.keys() == tensors.keys()
    assert all(torch.equal(tensors[name], others_tensors[name]) for name in tensors)


class Watch(TorchDispatchMode):
    """Refuses to read a number in a step that is replayed, and keeps the addresses of what such steps work on."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.addresses = []
        launch, batch = TrainStep.launch, TrainStep.batch

        def watched(step, tell):
            with nullcontext() if step.progress.step < 6 else self:  # all shapes are recorded by then
                launch(step, tell)
            if step.progress.step < 7:
                return
            state, update = step.state, step.captured_update
            tensors = [*state.model.parameters(), *(parameter.grad for parameter in state.model.parameters())]
            tensors += [tensor for kept in state.optimiser.state.values() for tensor in kept.values()]
            tensors += state.average.values.values()
            tensors += [update.sums, update.recorded[1], *(group["lr"] for group in state.optimiser.param_groups)]
            tensors += [tensor for recorded in step.captured.passes.values() for tensor in (*recorded.tensors, recorded.result)]
            self.addresses.append([tensor.data_ptr() for tensor in tensors])

        def made_on_the_host(step, number):
            with _disable_current_modes():
                return batch(step, number)

        monkeypatch.setattr(TrainStep, "launch", watched)
        monkeypatch.setattr(TrainStep, "batch", made_on_the_host)

    def __torch_dispatch__(self, function, types, arguments=(), named=None):
        assert function is not torch.ops.aten._local_scalar_dense.default
        return function(*arguments, **(named or {}))


OPTIMISERS = ("{kind: sgd, momentum: 0.9}", "{kind: adamw, weight_decay: 0.1}", "{kind: adadelta}")


@pytest.mark.parametrize(
    "changes",
    [
        [],
        ["teacher_forcing={kind: constant, ratio: 0.7}", f"optimiser={OPTIMISERS[0]}"],
        ["batching.pack=true", "precision=float16", f"optimiser={OPTIMISERS[1]}"],
        ["clip_norm=null", f"optimiser={OPTIMISERS[2]}"],
    ],
)
def test_a_recorded_step_trains_as_an_ordinary_one(changes, task, tmp_path, device, monkeypatch):
    recipe = load_recipe(task, [*CHANGES, *changes])
    # a scale that grows every second step: float16 overflows again and again
    scaler = partial(torch.amp.GradScaler, init_scale=2.0**19, growth_interval=2)
    monkeypatch.setattr("tfkit.train.train_state.torch.amp.GradScaler", scaler)
    device(None)
    train(recipe, tmp_path / "plain")
    recordings = []

    def capture(run, **options):
        recordings.append(run)
        return graph_stand_in.capture(run, **options)

    device(capture)
    watch = None if changes else Watch(monkeypatch)
    train(recipe, tmp_path / "recorded")
    check_equal(tmp_path / "plain", tmp_path / "recorded")
    assert len({entry["loss"] for entry in steps(tmp_path / "plain")}) == 9
    assert 2 <= len(recordings) <= 4
    if watch is not None:
        assert len(watch.addresses) == 3
        assert watch.addresses[0] == watch.addresses[1] == watch.addresses[2]


def test_a_run_resumes_exactly(task, tmp_path, device):
    device(graph_stand_in.capture)
    train(load_recipe(task, CHANGES), tmp_path / "whole")
    train(load_recipe(task, [*CHANGES, "stopping.max_steps=4"]), tmp_path / "half")
    resume(tmp_path / "half", overrides=["stopping.max_steps=9"])
    assert steps(tmp_path / "half") == steps(tmp_path / "whole")


def test_recorded_validations_score_as_ordinary_ones(task, tmp_path, device, monkeypatch):
    """Over other batches, and so with sums in another order. The weights of every validation are the averages of its step."""
    changes = [*CHANGES, "validation.every_steps=3", "batching.tokens=40", "stopping.max_steps=6"]
    recordings = []

    def capture(run, **options):
        recordings.append(run)
        return graph_stand_in.capture(run, **options)

    device(capture)
    monkeypatch.setattr(validation, "CapturedPasses", CapturedPasses)
    train(load_recipe(task, changes), tmp_path / "recorded")
    count = len(recordings)
    monkeypatch.setattr(validation, "CapturedPasses", lambda *parts: None)
    train(load_recipe(task, changes), tmp_path / "plain")
    assert 1 <= count - (len(recordings) - count) <= 3
    nlls = [
        [entry["nll"] for entry in result(tmp_path / run)[0] if entry["kind"] == "validation"] for run in ("recorded", "plain")
    ]
    assert nlls[0] == pytest.approx(nlls[1], rel=1e-6)
    assert nlls[0][0] != nlls[0][1]


def test_a_run_that_ends_while_a_step_is_unread_goes_on_exactly(task, tmp_path, device, monkeypatch):
    """After a callback that fails; and after a gradient that is no number, which is noticed a step late and changes nothing."""
    run, calls = CapturedPasses.__call__, []

    def poisoned(self, batch, seed):
        calls.append(seed)
        if len(calls) == 2 * 4:
            self.run.__self__.factor.fill_(float("inf"))
        return run(self, batch, seed)

    device(graph_stand_in.capture)
    train(load_recipe(task, CHANGES), tmp_path / "whole")
    monkeypatch.setattr(CapturedPasses, "__call__", poisoned)
    with pytest.raises(TrainingError, match=r"the norm of the gradient of step 4 .*, the state before it in .*step-3;"):
        train(load_recipe(task, CHANGES), tmp_path / "run")
    assert len(calls) == 2 * 5
    resume(tmp_path / "run")
    check_equal(tmp_path / "whole", tmp_path / "run")
    monkeypatch.setattr(CapturedPasses, "__call__", run)
    callback = Callbacks()
    callback.on_step_end = lambda step: 1 / (step.step - 3)
    with pytest.raises(ZeroDivisionError):
        train(load_recipe(task, CHANGES), tmp_path / "stopped", callbacks=[callback])
    assert steps(tmp_path / "stopped")[-1]["step"] == 4  # it was launched before the callbacks got the third
    resume(tmp_path / "stopped")
    check_equal(tmp_path / "whole", tmp_path / "stopped")


def test_a_pass_that_reads_a_number_is_named(task, tmp_path, device, monkeypatch):
    device(graph_stand_in.capture)
    plain = TrainStep._losses

    def reads(self, *arguments):
        sums = plain(self, *arguments)
        return sums._replace(loss=sums.loss * float(sums.nll > 0))

    monkeypatch.setattr(TrainStep, "_losses", reads)
    with pytest.raises(
        TrainingError, match=r"TFK063 the pass of a batch cannot be recorded as a CUDA graph: RuntimeError: a number"
    ):
        train(load_recipe(task, CHANGES), tmp_path / "run")


def test_what_cannot_be_recorded_is_refused(task, tmp_path):
    recipe = load_recipe(task, ["cuda_graphs=true", "activation_checkpointing=true"])
    with pytest.raises(InputError, match="TFK063 cuda_graphs: the model is on cpu, and CUDA graphs need a CUDA device; `act"):
        train(recipe, tmp_path / "run")
    assert not (tmp_path / "run").exists()
    with pytest.raises(InputError) as caught:
        check_captured(recipe, torch.device("cpu"), 2, True, 4)
    assert str(caught.value).count(";") == 5  # four between five reasons, one before the fix
    assert "cuda_graphs" in str(caught.value)


def test_compiled_steps_are_recorded_on_a_gpu_unless_the_recipe_says_otherwise(task):
    cuda, compiled = torch.device("cuda"), load_recipe(task, ["compile=true"])
    assert check_captured(compiled, cuda, 1, False, 1) == (True, [])
    assert check_captured(compiled, torch.device("cpu"), 1, False, 1) == (False, [])
    assert check_captured(load_recipe(task, ["compile=true", "cuda_graphs=false"]), cuda, 1, False, 1) == (False, [])
    assert check_captured(load_recipe(task), cuda, 1, False, 1) == (False, [])
    recorded, (notice,) = check_captured(compiled, cuda, 1, False, 4)
    assert not recorded
    assert "4 processes train together" in str(notice)


def test_batches_of_more_shapes_run_as_ordinary_ones(task, tmp_path, device, monkeypatch):
    """Said once. So is what cannot be recorded, unless the recipe asks for recordings."""
    device(None)
    train(load_recipe(task, CHANGES), tmp_path / "plain")
    device(graph_stand_in.capture)
    monkeypatch.setattr("tfkit.train.captured.MAX_PASSES", 1)
    warnings = Callbacks()
    train(load_recipe(task, CHANGES), tmp_path / "one", callbacks=[warnings])
    check_equal(tmp_path / "plain", tmp_path / "one")
    (text,) = warnings.texts
    assert text.startswith("TFK063 1 shapes of batches are recorded")
    recordings = []

    def failing(run, **options):
        recordings.append(options)
        if len(recordings) > 1 or "warm_up" in options:
            raise RuntimeError("operation not permitted when stream is capturing")
        return graph_stand_in.capture(run, **options)

    device(failing)
    monkeypatch.setattr("tfkit.train.captured.MAX_PASSES", 8)
    monkeypatch.setattr(Recipe, "few_shapes", True)
    warnings = Callbacks()
    train(load_recipe(task, CHANGES[1:]), tmp_path / "failing", callbacks=[warnings])
    assert steps(tmp_path / "failing") == steps(tmp_path / "plain")
    names = [text.partition(" cannot")[0] for text in warnings.texts]
    assert names == ["TFK063 the pass of a batch", "TFK063 the update of the weights"]
