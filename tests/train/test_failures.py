"""What goes wrong in the middle of a run, and that nothing which was learnt is lost by it."""

import json
import math
import os
import resource
import shutil
import signal
import sys

import pytest
import torch
from safetensors.torch import load_file
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from tfkit import Diagnostic, InputError, StoreError, TrainingError, load_recipe
from tfkit.cli import main
from tfkit.train import checkpoint, log as log_module, resume, tensorboard, train, validation
from tfkit.train.checkpoint import checkpoints_in
from tfkit.train.log import read_log


class CallbackAtStep:
    """Runs an action at a step and collects the warnings."""

    def __init__(self, at, action):
        self.at, self.action, self.trainer, self.warnings = at, action, None, []

    def on_train_start(self, trainer, changes):
        self.trainer = trainer

    def on_step_end(self, step):
        if step.step == self.at:
            self.action(self.trainer)

    def on_validation_end(self, result):
        pass

    def on_checkpoint(self, step, path):
        pass

    def on_warning(self, diagnostics):
        self.warnings += diagnostics

    def on_train_end(self, reason, model):
        pass


def finite(run):
    (latest,) = checkpoints_in(run / "checkpoints")[-1:]
    return all(bool(tensor.isfinite().all()) for tensor in load_file(latest / "model.safetensors").values())


def poison_weights(trainer):
    with torch.no_grad():
        next(iter(trainer.model.parameters())).fill_(float("nan"))


def poison_gradients(trainer):
    """The loss stays finite, its gradient does not: torch's clipping would spread it over all weights."""
    list(trainer.model.parameters())[-1].register_hook(lambda gradient: torch.full_like(gradient, float("inf")))


@pytest.mark.slow
def test_a_gradient_that_is_no_number_changes_nothing_and_its_batch_is_kept(task, tmp_path):
    recipe = load_recipe(task, ["clip_norm=1.0", "keeping.last=1", "keeping.every_steps=1"])
    with pytest.raises(TrainingError) as caught:
        train(recipe, tmp_path / "run", callbacks=[CallbackAtStep(7, poison_gradients)])
    message = str(caught.value)
    assert "TFK110 the norm of the gradient of step 8 is NaN or infinite" in message
    assert f"the state before it in {tmp_path / 'run' / 'checkpoints' / 'step-7'}" in message
    assert finite(tmp_path / "run")
    kept = load_file(tmp_path / "run" / "not-finite-step-8.safetensors")
    assert {name.split("/")[1] for name in kept} == {"source", "target", "labels"}
    # Without the callback, the step uses the stored batch, and the run ends as an undisturbed one.
    resume(tmp_path / "run")
    train(load_recipe(task, ["clip_norm=1.0"]), tmp_path / "whole")
    mine, theirs = (load_file(tmp_path / run / "checkpoints" / "step-24" / "model.safetensors") for run in ("run", "whole"))
    assert all(torch.equal(mine[name], theirs[name]) for name in mine)


def test_a_nan_loss_is_reported(task, tmp_path):
    with pytest.raises(TrainingError, match="TFK110 the loss of step 3 is NaN or infinite"):
        train(load_recipe(task), tmp_path / "run", callbacks=[CallbackAtStep(2, poison_weights)])


@pytest.mark.slow
def test_the_fix_names_the_best_model_if_there_is_one(task, tmp_path):
    with pytest.raises(TrainingError) as caught:
        train(load_recipe(task, ["validation.every_steps=2"]), tmp_path / "run", callbacks=[CallbackAtStep(5, poison_weights)])
    assert f"in float32, from the best model so far (--from {tmp_path / 'run'})" in str(caught.value)
    train(load_recipe(task, [f"pretrained={tmp_path / 'run'}", "stopping.max_steps=1"]), tmp_path / "other")
    assert finite(tmp_path / "other")


@pytest.mark.slow
def test_float16_skips_overflowing_steps_and_stops_at_the_smallest_loss_scale(task, tmp_path):
    recipe = load_recipe(task, ["precision=float16"])
    outcome = train(recipe, tmp_path / "run")
    assert outcome.progress.step == 24
    assert finite(tmp_path / "run")
    with pytest.raises(TrainingError, match=r"TFK110 with the loss scale .* the gradient of step 8 is NaN or infinite"):
        train(recipe, tmp_path / "other", callbacks=[CallbackAtStep(7, poison_gradients)])
    entries = [json.loads(line) for line in (tmp_path / "other" / "log.jsonl").read_text().splitlines()]
    assert [entry["step"] for entry in entries if entry["kind"] == "step"] == list(range(1, 8))
    assert finite(tmp_path / "other")


@pytest.mark.slow
def test_a_disk_that_is_full_for_a_while_does_not_stop_training(task, tmp_path, monkeypatch):
    write, refused = checkpoint.write_checkpoint, []

    def full(directory, tensors, state):
        if 8 <= int(directory.name[5:]) < 20:
            refused.append(directory.name)
            raise StoreError(Diagnostic("TFK081", f"{directory} could not be written: No space left on device"))
        write(directory, tensors, state)

    monkeypatch.setattr(checkpoint, "write_checkpoint", full)
    callback = CallbackAtStep(0, None)
    outcome = train(load_recipe(task), tmp_path / "run", callbacks=[callback])
    assert refused == ["step-8", "step-16"]
    assert [diagnostic.code for diagnostic in callback.warnings] == ["TFK081", "TFK081"]
    assert outcome.progress.step == 24


class Full:
    """A disk that is full from a step to another one: the log has room for half a line."""

    def __init__(self, log, first, last):
        self.log, self.first, self.last, self.warnings = log, first, last, []

    def __getattr__(self, name):
        return lambda *progress: None

    def on_step_end(self, step):
        if step.step in (self.first, self.last):
            room = self.log.stat().st_size + 20 if step.step == self.first else resource.RLIM_INFINITY
            resource.setrlimit(resource.RLIMIT_FSIZE, (room, resource.RLIM_INFINITY))

    def on_warning(self, diagnostics):
        self.warnings += diagnostics


@pytest.mark.slow
def test_a_log_that_cannot_be_written_does_not_stop_training(task, tmp_path):
    """Half a line is removed again, and the error is reported once while it lasts."""
    log = tmp_path / "run" / "log.jsonl"
    callback = Full(log, 3, 7)
    try:
        outcome = train(load_recipe(task, ["validation.every_steps=30"]), tmp_path / "run", callbacks=[callback])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    assert outcome.progress.step == 24
    assert [diagnostic.code for diagnostic in callback.warnings] == ["TFK081"]
    assert f"{log} could not be written: File too large; training continues" in str(callback.warnings[0])
    assert [entry.step for entry in read_log(log) if entry.kind == "step"] == [1, 2, 3, *range(8, 25)]
    assert checkpoints_in(tmp_path / "run" / "checkpoints")[-1].name == "step-24"


def test_ctrl_c_on_a_full_disk_reports_the_failed_checkpoint(task, tmp_path, monkeypatch):
    def full(directory, tensors, state):
        raise StoreError(Diagnostic("TFK081", f"{directory} could not be written: No space left on device"))

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    monkeypatch.setattr(checkpoint, "write_checkpoint", full)
    try:
        with pytest.raises(StoreError, match="step-5 could not be written"):
            train(
                load_recipe(task),
                tmp_path / "run",
                callbacks=[CallbackAtStep(5, lambda _: os.kill(os.getpid(), signal.SIGINT))],
            )
    finally:
        signal.signal(signal.SIGINT, before)


@pytest.mark.slow
def test_a_failing_callback_loses_no_step(task, tmp_path):
    def fail(trainer):
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        train(load_recipe(task, ["keeping.every_steps=500"]), tmp_path / "run", callbacks=[CallbackAtStep(5, fail)])
    assert [path.name for path in checkpoints_in(tmp_path / "run" / "checkpoints")] == ["step-5"]
    assert resume(tmp_path / "run").progress.step == 24


@pytest.mark.slow
@pytest.mark.parametrize("name", ["tfkit.train.validation.validation_nll", "tfkit.train.checkpointer.save"])
def test_a_validation_that_was_cut_off_is_made_again(task, tmp_path, monkeypatch, name):
    """During validation or while the model is written; the result is that of an undisturbed run, patience included."""

    def cut_off(*arguments, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(name, cut_off)
        with pytest.raises(KeyboardInterrupt):
            train(load_recipe(task), tmp_path / "run")
    assert checkpoints_in(tmp_path / "run" / "checkpoints")[-1].name == "step-10"
    mine, theirs = resume(tmp_path / "run").progress, train(load_recipe(task), tmp_path / "whole").progress
    assert (mine.best, mine.stale, mine.best_models) == (theirs.best, theirs.stale, theirs.best_models)
    for run in ("run", "whole"):
        entries = [json.loads(line) for line in (tmp_path / run / "log.jsonl").read_text().splitlines()]
        assert [entry["step"] for entry in entries if entry["kind"] == "validation"] == [10, 20, 24]


@pytest.mark.parametrize("change", ["stopping.patience=2", "validation.metric=bleu"])
def test_patience_and_scores_need_validation_data(task, tmp_path, change):
    lines = [(task.parent / name).read_text().splitlines()[:15] for name in ("train.src", "train.trg")]
    for name, kept in zip(("train.src", "train.trg"), lines, strict=True):
        (task.parent / name).write_text("".join(f"{line}\n" for line in kept))
    with pytest.raises(InputError, match=r"TFK112 .*need validation data, and there are none"):
        train(load_recipe(task, ["data.held_out=null", change]), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_ctrl_c_during_preparation_leaves_nothing_behind(task, tmp_path, monkeypatch):
    def interrupted(*arguments):
        raise KeyboardInterrupt

    (tmp_path / "run").mkdir()
    monkeypatch.setattr("tfkit.train.preparation.fitted_spec", interrupted)
    with pytest.raises(KeyboardInterrupt):
        train(load_recipe(task), tmp_path / "run")
    assert list((tmp_path / "run").iterdir()) == []


def test_one_table_has_one_vocabulary(task, tmp_path):
    with pytest.raises(InputError, match=r"TFK106 .*share one table of tokens, and the recipe has a vocabulary for each"):
        train(load_recipe(task, ["tokeniser.joint=false"]), tmp_path / "run")


@pytest.mark.slow
def test_separate_vocabularies_for_separate_tables(task, tmp_path):
    changes = ["tokeniser.joint=false", "model.target.share=null", "model.logits.share=target", "stopping.max_steps=2"]
    outcome = train(load_recipe(task, changes), tmp_path / "run")
    assert {path.name for path in outcome.model.iterdir()} >= {"source.json", "target.json"}
    assert resume(tmp_path / "run", overrides=["stopping.max_steps=3"]).progress.step == 3


@pytest.mark.slow
@pytest.mark.parametrize("how", ["removed", "moved", "replaced"])
@pytest.mark.parametrize("step", [3, 8, 10, 24])  # between checkpoints, at one, at a validation, at the end
def test_a_run_whose_directory_is_gone_fails_and_writes_nowhere(task, tmp_path, how, step):
    directory, new_place = tmp_path / "run", tmp_path / "elsewhere"

    def take(trainer):
        directory.rename(new_place)
        if how == "removed":
            shutil.rmtree(new_place)
        elif how == "replaced":
            directory.mkdir()
            (directory / "run.lock.json").write_text("mine")

    callback = CallbackAtStep(step, take)
    with pytest.raises(StoreError) as caught:
        train(load_recipe(task), directory, callbacks=[callback])
    assert f"TFK081 {directory} was removed or replaced while the run was working in it" in str(caught.value)
    assert callback.warnings == []
    assert callback.trainer.progress.step <= step + 1
    if how == "replaced":
        assert [path.name for path in directory.iterdir()] == ["run.lock.json"]
    else:
        assert not directory.exists()
    if how == "moved":
        assert resume(new_place).progress.step == 24


def command(capsys, *words):
    """The exit code of a command, and what it printed on standard error."""
    code = main([*map(str, words)])
    return code, capsys.readouterr().err


@pytest.mark.slow
def test_a_log_that_was_altered_takes_nothing_from_a_finished_training(task, tmp_path, capsys, monkeypatch):
    append, log = log_module.append_log, tmp_path / "run" / "log.jsonl"

    def altered(path, entry):
        append(path, {**entry, "kind": "stop"} if entry["step"] == 5 else entry)

    monkeypatch.setattr("tfkit.train.log.append_log", altered)
    code, output = command(capsys, "train", task, "-o", tmp_path / "run")
    assert code == 0
    assert f"{log}:5:1: TFK082 this line is no entry of the log of a run" in output
    assert checkpoints_in(tmp_path / "run" / "checkpoints")[-1].name == "step-24"
    code, output = command(capsys, "train", "--resume", tmp_path / "run")
    assert (code, f"{log}:5:1: TFK082" in output) == (2, True)


@pytest.mark.slow
def test_a_directory_that_is_gone_is_exit_code_1(task, tmp_path, capsys, monkeypatch):
    append = log_module.append_log

    def take(path, entry):
        append(path, entry)
        if entry["step"] == 5:
            shutil.rmtree(tmp_path / "run")

    monkeypatch.setattr("tfkit.train.log.append_log", take)
    code, output = command(capsys, "train", task, "-o", tmp_path / "run")
    assert code == 1
    assert output.count("TFK081") == 1, output
    assert "was removed or replaced" in output
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_events_that_cannot_be_written_are_reported_once(task, tmp_path, capsys, monkeypatch):
    """Without a traceback of a thread, and training continues."""
    add = tensorboard.TensorBoard.on_step_end

    def fill(board, step):
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        if step.step >= 4:
            resource.setrlimit(resource.RLIMIT_FSIZE, (400, before[1]))
        try:
            add(board, step)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)

    monkeypatch.setattr(tensorboard.TensorBoard, "on_step_end", fill)
    code, output = command(capsys, "train", task, "-o", tmp_path / "run")
    assert code == 0
    assert "Traceback" not in output
    assert output.count("TFK081") == 1
    assert (
        f"{tmp_path / 'run' / 'tensorboard'} could not be written: File too large; training continues without events" in output
    )


@pytest.mark.slow
def test_events_that_go_on_hide_those_after_the_checkpoint(task, tmp_path, capsys):
    code, _ = command(capsys, "train", task, "-o", tmp_path / "run", "--set", "stopping.max_steps=6")
    assert code == 0
    assert command(capsys, "train", "--resume", tmp_path / "run", "--set", "stopping.max_steps=11")[0] == 0
    found = EventAccumulator(str(tmp_path / "run" / "tensorboard")).Reload()
    assert [event.step for event in found.Scalars("train/loss")] == list(range(1, 12))
    assert [event.step for event in found.Scalars("validation/nll")] == [6, 10, 11]
    entries = [entry for entry in read_log(tmp_path / "run" / "log.jsonl") if entry.kind == "step"]
    losses = [event.value for event in found.Scalars("train/loss")]
    assert losses == pytest.approx([entry.loss for entry in entries], rel=2**-23)


@pytest.mark.slow
def test_a_validation_that_is_no_number_is_the_worst_and_is_read_back(task, tmp_path, monkeypatch):
    nll = validation.validation_nll
    monkeypatch.setattr(
        validation,
        "validation_nll",
        lambda *given: (float("nan"), {}) if not seen.append(1) and len(seen) == 1 else nll(*given),
    )
    seen = []
    half = train(load_recipe(task, ["stopping.max_steps=10"]), tmp_path / "run").progress
    assert (half.best, half.best_step) == (-sys.float_info.max, 10)
    done = resume(tmp_path / "run", overrides=["stopping.max_steps=24"]).progress
    assert done.best_step in (20, 24)
    validations = [entry for entry in read_log(tmp_path / "run" / "log.jsonl") if entry.kind == "validation"]
    assert [math.isnan(entry.nll) for entry in validations] == [True, False, False]


@pytest.mark.slow
@pytest.mark.parametrize("metric", ["loss", "bleu"])
def test_weights_that_are_no_numbers_after_the_last_step_end_the_run(metric, task, tmp_path, capsys):
    """An `eps` that is 0 in float32 divides 0 by 0 where a row of an embedding has no gradient."""
    settings = ["optimiser={kind: adam, eps: 1.0e-300}", "stopping.max_steps=1", f"validation.metric={metric}"]
    code, output = command(
        capsys, "train", task, "-o", tmp_path / "run", *(word for one in settings for word in ("--set", one))
    )
    assert code == 1
    assert "TFK110 `nodes." in output
    assert "holds NaN or infinite numbers after step 1" in output
    assert "the best so far" not in output
    assert not list((tmp_path / "run").glob("models/step-*"))
    assert not list((tmp_path / "run").glob("checkpoints/step-*"))
