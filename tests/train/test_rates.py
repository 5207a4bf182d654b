"""The schedule `plateau` against torch's, and the sweep of learning rates."""

import json
import math
from itertools import pairwise

import pytest
import torch
from safetensors.torch import load_file

from tfkit import InputError, SpecError, load_recipe
from tfkit.cli import main
from tfkit.recipe import recipe_of
from tfkit.train import resume, train
from tfkit.train.callbacks import Progress
from tfkit.train.checkpoint import checkpoints_in
from tfkit.train.optimiser import rate_of
from tfkit.train.rate_finder import FIRST, RatePoint, RateSweep, peak_setting
from tfkit.train.validation import reduces_at_plateau

pytestmark = pytest.mark.xdist_group("rates")
PLATEAU = "schedule={kind: plateau, peak: 1.0e-2, warmup_steps: 5, factor: 0.5, patience: 0, threshold: 0.2}"


def plateau(**options):
    written = ", ".join(f"{name}: {value}" for name, value in options.items())
    schedule = f"{{kind: plateau, {written}}}"
    return recipe_of(f"{{tfkit: 1, name: x, model: x, stopping: {{max_steps: 9}}, schedule: {schedule}}}".encode(), "x.yaml")


@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("options", [{}, {"factor": 0.5, "patience": 2, "threshold": 0.01}, {"patience": 0, "floor": 1e-3}])
def test_the_rates_are_those_of_torch(mode, options):
    draw = torch.Generator().manual_seed(4)
    scores = (torch.rand(60, generator=draw) * 0.1 + torch.linspace(2, 1, 60).clamp(min=1.4)).tolist()
    recipe = plateau(peak=0.1, **options)
    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    theirs = {"factor": 0.1, "patience": 10, "threshold": 1e-4, **options}
    theirs["min_lr"] = theirs.pop("floor", 0.0)
    scheduler = torch.optim.lr_scheduler.ReduceLROnPlateau(optimiser, mode, **theirs, eps=0.0)
    progress, reductions = Progress(), 0
    for step, score in enumerate(scores, 1):
        scheduler.step(score)
        reductions += reduces_at_plateau(recipe, progress, -score if mode == "min" else score)
        assert rate_of(recipe, step, 16, progress.reductions) == pytest.approx(optimiser.param_groups[0]["lr"], rel=1e-12)
    assert progress.reductions == reductions >= (1 if options else 0)


def test_a_run_reduces_its_rate_and_resumes_exactly(task, tmp_path, capsys):
    changes = [PLATEAU, "validation.every_steps=3", "keeping.every_steps=1"]
    words = [word for change in changes for word in ("--set", change)]
    assert main(["train", str(task), "-o", str(tmp_path / "whole"), *words]) == 0
    assert "\na plateau: the learning rate is reduced to 0.005\n" in capsys.readouterr().err
    log = [json.loads(line) for line in (tmp_path / "whole" / "log.jsonl").read_text().splitlines()]
    rates = [entry["rate"] for entry in log if entry["kind"] == "step"]
    reduced = [entry for entry in log if entry["kind"] == "validation" and "rate" in entry]
    assert rates[4] == 1e-2
    for entry in reduced:
        if entry["step"] < len(rates):
            assert rates[entry["step"]] == entry["rate"] == pytest.approx(rates[entry["step"] - 1] / 2)
    assert rates[-1] == pytest.approx(1e-2 / 2 ** sum(entry["step"] < len(rates) for entry in reduced))
    train(load_recipe(task, [*changes, "stopping.max_steps=13"]), tmp_path / "halves")
    resume(tmp_path / "halves", overrides=["stopping.max_steps=24"])
    states = [json.loads((checkpoints_in(tmp_path / run / "checkpoints")[-1] / "state.json").read_text())["progress"]
              for run in ("whole", "halves")]  # fmt: skip
    names = ("reductions", "plateau_best", "plateau_stale")
    assert [states[0][name] for name in names] == [states[1][name] for name in names]
    mine, theirs = (load_file(checkpoints_in(tmp_path / run / "checkpoints")[-1] / "model.safetensors")
                    for run in ("whole", "halves"))  # fmt: skip
    assert all(torch.equal(mine[key], theirs[key]) for key in mine)


def test_a_plateau_needs_validation_data_and_a_factor_below_1(task, tmp_path):
    text = task.read_text().replace(", held_out: 12", "")
    task.write_text(text)
    for name in ("train.src", "train.trg"):
        lines = (tmp_path / name).read_text().splitlines(keepends=True)
        (tmp_path / name).write_text("".join(lines[:15]))
    with pytest.raises(InputError, match=r"TFK112 .*the schedule `plateau` need validation data, and there are none"):
        train(load_recipe(task, [PLATEAU]), tmp_path / "run")
    with pytest.raises(SpecError, match=r"schedule.factor: less than 1"):
        plateau(peak=0.1, factor=1.0)
    with pytest.raises(SpecError, match=r"`floor` is 0.2, more than `peak`, which is 0.1"):
        plateau(peak=0.1, floor=0.2)


def test_the_suggestion_is_the_steepest_fall_before_the_lowest_loss():
    losses = [5.0] * (FIRST + 2) + [4.9, 4.5, 3.0, 2.6, 2.5, 4.0, 1e9]
    points = tuple(RatePoint(10.0 ** (at / 10), loss, loss) for at, loss in enumerate(losses))
    sweep = RateSweep.of(points, "x")
    assert sweep.suggestion == points[losses.index(3.0)].rate
    assert sweep.lowest.loss == 2.5
    assert RateSweep.of(points[: FIRST + 1], "x").suggestion is None


def test_a_sweep_draws_the_losses_suggests_a_rate_and_leaves_nothing_else(task, tmp_path, capsys):
    before = sorted(tmp_path.iterdir())
    assert main(["train", str(task), "--find-rate", "-o", str(tmp_path / "rates")]) == 0
    out = capsys.readouterr().out
    assert sorted(tmp_path.iterdir()) == sorted([*before, tmp_path / "rates"])
    assert sorted(path.name for path in (tmp_path / "rates").iterdir()) == ["rate.html", "rate.json"]
    data = json.loads((tmp_path / "rates" / "rate.json").read_text())
    assert 1e-5 < data["suggestion"] < 1
    assert f"suggested rate: {data['suggestion']:.2e}, where the smoothed loss falls fastest" in out
    assert f"--set schedule.peak={data['suggestion']:.3g}\n" in out
    rates = [point["rate"] for point in data["points"]]
    assert rates[0] == pytest.approx(1e-7)
    ratios = [later / earlier for earlier, later in pairwise(rates)]
    assert ratios == pytest.approx([1e7 ** (1 / 99)] * len(ratios))
    mean = 0.0
    for number, point in enumerate(data["points"], 1):
        mean = 0.9 * mean + 0.1 * point["loss"]
        assert point["smoothed"] == pytest.approx(mean / (1 - 0.9**number))
    page = (tmp_path / "rates" / "rate.html").read_text()
    assert page.count("<polyline") == 3
    train(load_recipe(task, ["stopping.max_steps=1"]), tmp_path / "rates-are-no-run")
    assert main(["train", str(task), "--find-rate", "-o", str(tmp_path / "rates")]) == 2
    assert main(["train", "--resume", str(tmp_path), "--find-rate"]) == 2
    assert main(["train", str(task), "--find-rate"]) == 2


def test_the_setting_has_the_suggested_peak(task):
    recipe = load_recipe(task, ["schedule={kind: noam, warmup_steps: 400}"])
    [factor] = [float(peak_setting(recipe, 1e-3, 64).partition("=")[2])]
    assert rate_of(load_recipe(task, [f"schedule={{kind: noam, warmup_steps: 400, factor: {factor}}}"]), 400, 64, 0) == (
        pytest.approx(1e-3, rel=1e-2)
    )
    assert math.isclose(factor, 0.16)
