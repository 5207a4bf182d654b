"""`compile: true`: as many graphs as there are shapes, the loss and gradients of the batch as it was, and an exact resume."""

import shutil

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from kinds_task import recipe_for
from tfkit import BackendRefused, TrainingError, build, load_catalogue, load_recipe
from tfkit.data import prepare
from tfkit.train import compiled, resume, train
from tfkit.train.fit_spec import fitted_spec, roles_in
from tfkit.train.step import TrainStep
from tfkit.view.training import start_text

SHAPES = 2


@pytest.fixture(autouse=True)
def without_a_cpp_compiler(monkeypatch, most_shapes):
    """Traced and differentiated as always, but run by torch's own operators: writing C++ takes minutes."""
    plain = torch.compile
    monkeypatch.setattr(torch, "compile", lambda *given, **options: plain(*given, **options, backend="aot_eager"))
    most_shapes(SHAPES)
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.fixture
def masked(tmp_path):
    """The recipe of a model with one stack, where it is not the model that matters: a graph of two takes twice as long."""
    return recipe_for(tmp_path, "masked")


def step_for(task, folder, changes):
    recipe, catalogue = load_recipe(task, changes), load_catalogue()
    roles = roles_in(recipe, catalogue)
    data = prepare(recipe, folder / "data", 90)
    spec, _ = fitted_spec(recipe, catalogue, roles, data.tokenisers, 0)
    return TrainStep(build(spec, catalogue, seed=1), recipe, data)


def graphs():
    return torch._dynamo.utils.counters["stats"]["unique_graphs"]


@pytest.mark.exhaustive
def test_at_most_as_many_graphs_as_shapes(masked, tmp_path):
    """One more is an error and no silent way back. As many are allowed for the next model in the process, which has the same
    code and other shapes."""
    step = step_for(masked, tmp_path, ["compile=true", "batching.tokens=60"])
    torch._dynamo.utils.counters.clear()
    seen = set()
    for _ in range(2):
        batches = step.batches.epoch(step.progress.epoch).batches
        assert len(batches) > 3 * SHAPES
        while not step.epoch_complete:
            rows = batches[step.progress.batch]
            seen.add(step.batches.shapes.of(rows).limit)
            assert step.run() is not None
            assert graphs() == len(seen)
        step.progress.epoch, step.progress.batch = step.progress.epoch + 1, 0
    assert len(seen) == graphs() == SHAPES
    assert not any("_orig_mod" in name for name in step.state.tensors()["model.safetensors"])
    given = step.task.batch(step.data.train, [0], np.random.default_rng(0))
    with pytest.raises(TrainingError, match="TFK120"):
        step._losses(step.compiled.module, given, dict.fromkeys(step.roles.outputs, 1.0))
    other = step_for(masked, tmp_path / "other", ["compile=true", "batching.tokens=80"])
    while not other.epoch_complete:
        assert other.run() is not None
    assert graphs() == 2 * SHAPES


@pytest.mark.slow
def test_loss_and_gradients_are_those_of_the_batch_as_it_was(task, tmp_path):
    changes = ["model.defaults.dropout=0.0", "average=null", "batching.tokens=60", "batching.accumulate=2"]
    full = step_for(task, tmp_path / "full", [*changes, "compile=true"])
    bare = step_for(task, tmp_path / "bare", changes)
    bare.batches._epoch = 1, full.batches.epoch(1)
    full.model.double(), bare.model.double()
    bare.progress.epoch = full.progress.epoch
    for _ in range(3):
        one, other = full.run(), bare.run()
        assert (one.source_tokens, one.target_tokens) == (other.source_tokens, other.target_tokens)
        # Both sum the loss in float32: a rounding for each of some hundred labels.
        assert one.loss == pytest.approx(other.loss, rel=1e-5)
        assert one.norm == pytest.approx(other.norm, rel=1e-5)
        for (name, mine), theirs in zip(full.model.named_parameters(), bare.model.parameters(), strict=True):
            assert float((mine.grad - theirs.grad).norm()) <= 1e-5 * (1e-2 + float(theirs.grad.norm())), name
        bare.model.load_state_dict(full.model.state_dict())


class Beginning:
    """Keeps the text that describes a run before its first step."""

    def on_train_start(self, trainer, changes):
        self.text = start_text(trainer, changes)

    def __getattr__(self, name):
        return lambda *arguments: None


@pytest.mark.exhaustive
def test_a_run_that_was_killed_ends_as_if_it_had_not(masked, tmp_path):
    """It goes on from its first checkpoint, in a process that has compiled nothing, with a batch of its own."""
    changes = ["compile=true", "batching.tokens=60", "average=0.9", "stopping.max_steps=24"]
    changes += ["keeping={every_steps: 11, last: 3}", "validation.every_steps=10"]
    beginning = Beginning()
    train(load_recipe(masked, changes), tmp_path / "whole", callbacks=[beginning])
    assert f"batches have {SHAPES} shapes;" in beginning.text
    shutil.copytree(tmp_path / "whole", tmp_path / "half")
    for step in (22, 24):
        shutil.rmtree(tmp_path / "half" / "checkpoints" / f"step-{step}")
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    resume(tmp_path / "half")
    assert graphs() == SHAPES + 1, "and that of `check_compiler`"
    for name in ("model", "optimiser", "average"):
        mine, theirs = (
            load_file(tmp_path / run / "checkpoints" / "step-24" / f"{name}.safetensors") for run in ("whole", "half")
        )
        assert mine.keys() == theirs.keys()
        assert all(torch.equal(mine[key], theirs[key]) for key in mine), name


def test_nothing_begins_where_nothing_compiles(task, tmp_path, monkeypatch):
    def broken(*given, **options):
        raise RuntimeError("InvalidCxxCompiler: No working C++ compiler found\nand more")

    monkeypatch.setattr(torch, "compile", broken)
    with pytest.raises(TrainingError) as found:
        train(load_recipe(task, ["compile=true"]), tmp_path / "run")
    (diagnostic,) = found.value.diagnostics
    assert diagnostic.code == "TFK120"
    assert "No working C++ compiler found" in diagnostic.message
    assert "g++" in diagnostic.fix
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_a_backend_that_cannot_be_compiled_is_refused(task, tmp_path):
    step = step_for(task, tmp_path, ["compile=true", "batching.tokens=60"])
    step.model.set_backend("flex")
    with pytest.raises(BackendRefused, match=r"TFK060 encoder.0.self_attention: backend flex cannot serve this site"):
        step.run()


def test_it_is_off_unless_written(task, tmp_path):
    assert step_for(task, tmp_path, []).compiled is None
    compiled.check_compiler(torch.device("cpu"))
