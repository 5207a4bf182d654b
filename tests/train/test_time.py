"""`stopping.max_minutes` counts from the start of the command; what is left is estimated from this command's steps."""

import json
import re
from types import SimpleNamespace

import pytest

from tfkit import load_recipe
from tfkit.cli.callbacks import JsonLines
from tfkit.train import resume, train
from tfkit.train.budget import FEWEST, MEASURED, SLOW, BudgetCheck, reach_of
from tfkit.train.callbacks import Progress
from tfkit.train.trainer import last_step, why_stop
from tfkit.view.training import Lines, left_text


@pytest.fixture
def clock(monkeypatch):
    """A clock that stands still unless it is moved."""
    now = [1000.0]
    monkeypatch.setattr("tfkit.train.session.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("tfkit.train.trainer.time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr("tfkit.train.validation.time", SimpleNamespace(perf_counter=lambda: now[0]))
    return now


class Moving:
    """Moves the clock by so many seconds a step and a validation."""

    def __init__(self, clock, step):
        self.clock, self.by, self.seconds = clock, step, []

    def on_train_start(self, trainer, changes):
        self.trainer = trainer

    def on_step_end(self, step):
        self.seconds.append(self.trainer.progress.seconds)
        self.clock[0] += self.by

    def __getattr__(self, name):
        return lambda *progress: None


def slow(clock, monkeypatch, name, seconds):
    """What takes so long by the clock."""
    module, _, last = name.rpartition(".")
    work = getattr(__import__(module, fromlist=[last]), last)

    def slowly(*given, **named):
        clock[0] += seconds
        return work(*given, **named)

    monkeypatch.setattr(name, slowly)


@pytest.mark.slow
def test_preparation_and_validation_count(task, tmp_path, clock, monkeypatch):
    slow(clock, monkeypatch, "tfkit.train.preparation.prepare", 40.0)
    slow(clock, monkeypatch, "tfkit.train.validation.validation_nll", 7.0)
    recipe = load_recipe(task, ["stopping={max_minutes: 2}", "validation.every_steps=3"])
    callback = Moving(clock, 5.0)
    outcome = train(recipe, tmp_path / "run", callbacks=[callback])
    # 40 s, then three steps of 5 s and a validation of 7 s at a time: at 106 s three more, the last of which ends at 121 s.
    assert callback.seconds[:4] == [40.0, 45.0, 50.0, 62.0]
    assert outcome.reason == "2 minutes are over, less 7 s for the last validation"
    assert outcome.progress.step == 11
    assert outcome.progress.validated == 11
    assert 60 * 2 <= clock[0] - 1000.0 <= 60 * 2 + 5 + 7


def test_one_step_is_made_where_the_preparation_took_all_the_time(task, tmp_path, clock, monkeypatch):
    slow(clock, monkeypatch, "tfkit.train.preparation.prepare", 400.0)
    outcome = train(load_recipe(task, ["stopping={max_minutes: 2}"]), tmp_path / "run")
    assert (outcome.progress.step, outcome.reason) == (1, "2 minutes are over")
    assert outcome.model.is_dir()


def test_a_run_that_goes_on_adds_to_the_time(task, tmp_path, clock):
    train(load_recipe(task, ["stopping={max_minutes: 1, max_steps: 4}"]), tmp_path / "run", callbacks=[Moving(clock, 5.0)])
    clock[0] += 10_000.0
    outcome = resume(
        tmp_path / "run", overrides=["stopping.max_steps=null"], callbacks=[Moving(clock, 5.0)], since=clock[0] - 15
    )
    assert outcome.progress.step == 9  # 4 * 5 s, 15 s of start-up, 5 * 5 s
    assert outcome.progress.seconds == 60.0


def test_no_step_begins_that_leaves_no_time_for_the_validation(task):
    recipe = load_recipe(task, ["stopping={max_minutes: 1}"])
    assert why_stop(recipe, Progress(step=5, seconds=49.0), 10.0) is None
    assert why_stop(recipe, Progress(step=5, seconds=50.0), 10.0) is not None
    assert why_stop(recipe, Progress(step=5, seconds=59.0), 0.0) is None
    assert why_stop(recipe, Progress(step=0, seconds=70.0), 0.0) is None


@pytest.mark.slow
def test_a_validation_names_the_epoch_of_its_step_also_at_the_end_of_one(task, tmp_path):
    recipe = load_recipe(task, ["stopping={max_epochs: 2, max_minutes: null}", "validation.every_steps=1"])
    train(recipe, tmp_path / "run")
    entries = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    steps = {entry["step"]: entry["epoch"] for entry in entries if entry["kind"] == "step"}
    validations = {entry["step"]: entry["epoch"] for entry in entries if entry["kind"] == "validation"}
    assert set(steps.values()) == {1, 2}
    assert validations == steps


def trainer(progress, **stopping):
    limits = SimpleNamespace(**{"max_steps": None, "max_epochs": None, "max_minutes": None} | stopping)
    recipe = SimpleNamespace(stopping=limits, batching=SimpleNamespace(accumulate=2))
    return SimpleNamespace(progress=progress, recipe=recipe, epoch=lambda: SimpleNamespace(batches=range(100)))


@pytest.mark.parametrize(
    ("progress", "stopping", "start", "text"),
    [
        (Progress(step=1, seconds=11.0), {"max_steps": 250}, (0, 9.0), ", at most 0:08:18 left"),
        (Progress(step=1, seconds=9.001), {"max_steps": 250}, (0, 9.0), ", at most 0:00:01 left"),
        (Progress(step=1, seconds=40.0), {"max_minutes": 3.0}, (0, 30.0), ", at most 0:02:20 left"),
        (Progress(step=1, seconds=40.0), {"max_steps": 250, "max_minutes": 3.0}, (0, 39.0), ", at most 0:02:20 left"),
        (Progress(step=110, seconds=500.0), {"max_steps": 120}, (100, 400.0), ", at most 0:01:40 left"),
        (Progress(step=10, batch=20, seconds=10.0), {"max_epochs": 2}, (0, 0.0), ", at most 0:01:30 left"),
        (Progress(step=3, seconds=200.0), {"max_minutes": 3.0}, (0, 0.0), ", at most 0:00:00 left"),
        (Progress(step=3, seconds=200.0), {}, (0, 0.0), ""),
    ],
)
def test_the_remaining_time_follows_the_nearest_limit(progress, stopping, start, text):
    assert left_text(trainer(progress, **stopping), *start) == text


def trainer_at(stopping, step=20, seconds=30.0, validation=0.0, batches=50, accumulate=2, warmup=1):
    """A trainer in its first epoch, as far as an estimate looks at it."""
    limits = {"max_steps": None, "max_epochs": None, "max_minutes": None} | stopping
    recipe = SimpleNamespace(
        stopping=SimpleNamespace(**limits), batching=SimpleNamespace(accumulate=accumulate),
        schedule=SimpleNamespace(options=SimpleNamespace(warmup_steps=warmup)),
    )  # fmt: skip
    progress = Progress(step=step, batch=step * accumulate, seconds=seconds)
    epoch = SimpleNamespace(batches=[None] * batches)
    return SimpleNamespace(
        recipe=recipe, progress=progress, clock=SimpleNamespace(validation_seconds=validation), epoch=lambda: epoch
    )  # fmt: skip


def test_what_fits_in_the_time_limit():
    """20 steps and 30 s are over, 90 s are left but for 10 s of validation: 40 steps of 2 s, and 25 steps are an epoch."""
    reach = reach_of(trainer_at({"max_minutes": 2}, validation=10.0), 2.0)
    assert (reach.steps, reach.epochs) == (60, 60 / 25)
    assert reach.text == "at 2.00 s per step about 60 steps (2.4 epochs) fit in 2 minutes"


@pytest.mark.parametrize(
    ("stopping", "found"),
    [({}, None), ({"max_minutes": 2, "max_steps": 60}, None), ({"max_minutes": 2, "max_steps": 66}, 65),
     ({"max_minutes": 2, "max_epochs": 2}, None), ({"max_minutes": 2, "max_epochs": 3}, 65), ({"max_minutes": 0.5}, 20)],
)  # fmt: skip
def test_nothing_is_said_where_another_limit_ends_the_run_before(stopping, found):
    reach = reach_of(trainer_at(stopping), 2.0)
    assert (reach and reach.steps) == found


@pytest.mark.parametrize(("minutes", "warmup", "why"), [(1.2, 1, "fewer than 100"), (8.2, 400, "rises until step 400")])
def test_a_hopeless_run_is_warned_of_with_its_numbers(minutes, warmup, why):
    reach = reach_of(trainer_at({"max_minutes": minutes}, warmup=warmup), 2.0)
    assert reach.steps < max(FEWEST, warmup)
    assert f"{reach.steps:,} steps in {minutes:g} minutes" in str(reach.warning)
    assert why in str(reach.warning)
    assert reach_of(trainer_at({"max_minutes": 60}, warmup=warmup), 2.0).warning is None


def test_it_is_said_once_and_without_the_slow_steps_at_the_beginning():
    said = []
    check = BudgetCheck(said.append)
    check.on_train_start(trainer_at({"max_minutes": 60}), [])
    for number in range(3 * MEASURED):
        check.on_step_end(SimpleNamespace(seconds=100.0 if number < SLOW else 2.0))
        assert len(said) == (number + 1 >= MEASURED)
    assert said[0].seconds_per_step == 2.0


@pytest.mark.slow
def test_a_run_says_it_as_text_and_as_json(task, tmp_path, clock, capsys):
    recipe = load_recipe(task, ["stopping={max_minutes: 2, max_steps: null}", "validation.every_steps=1000"])
    printers = [Lines(), JsonLines()]
    checks = [BudgetCheck(printer.on_reach) for printer in printers]
    train(recipe, tmp_path / "run", callbacks=[Moving(clock, 5.0), *checks])
    heard = capsys.readouterr()
    assert re.search(r"at [\d.]+ s per step about [\d,]+ steps \([\d.e+]+ epochs\) fit in 2 minutes\n", heard.err), heard.err
    assert [json.loads(line)["kind"] for line in heard.out.splitlines()] == ["reach"]


@pytest.mark.parametrize(
    ("progress", "stopping", "last"),
    [
        (Progress(), {}, None),
        (Progress(), {"max_minutes": 3.0}, None),
        (Progress(step=7), {"max_steps": 250}, 250),
        (Progress(), {"max_epochs": 3}, 3 * 51),
        (Progress(step=51 + 10, epoch=2, batch=20), {"max_epochs": 3}, 3 * 51),
        (Progress(), {"max_epochs": 3, "max_steps": 100}, 100),
    ],
)
def test_the_last_step_of_a_run(progress, stopping, last):
    """101 batches are 51 steps of 2."""
    one = trainer(progress, **stopping)
    one.epoch = lambda: SimpleNamespace(batches=range(101))
    assert last_step(one) == last


def test_a_rate_that_is_0_is_reported_before_the_first_step_and_at_a_resumption(task, tmp_path, capsys):
    schedule = "schedule={kind: linear, peak: 0.01, warmup_steps: 2, steps: 4}"
    train(load_recipe(task, [schedule, "stopping.max_steps=3"]), tmp_path / "run", callbacks=[JsonLines()])
    assert '"kind": "warning"' not in capsys.readouterr().out
    resume(tmp_path / "run", overrides=["stopping.max_steps=6"], callbacks=[JsonLines()])
    events = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [event["kind"] for event in events[:3]] == ["start", "warning", "step"]
    (warning,) = events[1]["diagnostics"]
    assert (warning["code"], warning["message"]) == ("TFK131", "the learning rate is 0 from step 4 on, and the last step is 6")


def test_a_warm_up_in_epochs_is_compared_with_the_steps_of_an_epoch(task, tmp_path, capsys):
    changes = ["schedule.warmup_steps=1000", "stopping={max_epochs: 1, max_steps: null}", "batching.accumulate=1000"]
    train(load_recipe(task, changes), tmp_path / "run", callbacks=[Lines()])
    printed = capsys.readouterr().err
    assert "TFK131 schedule.warmup_steps: the learning rate rises until step 1,000, and the last step is 1" in printed
    (tokens,) = re.findall(r"a step: ([\d,]+) source tokens and ", printed)
    log = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    (step,) = [entry for entry in log if entry["kind"] == "step"]
    assert int(tokens.replace(",", "")) == step["source_tokens"]
