"""Learning rates against the paper's figures and torch's own schedulers."""

import math

import pytest
import torch

from tfkit import SpecError
from tfkit.recipe import recipe_of, schedule_warning
from tfkit.recipe.parts import (
    DecayOptions,
    HalvingOptions,
    NoamOptions,
    PeakOptions,
    constant,
    cosine,
    halving,
    inverse_sqrt,
    linear_rate as linear,
    noam,
)

COSINE = "{kind: cosine, peak: 1, warmup_steps: 5, steps: 20}"
LINEAR = "{kind: linear, peak: 1, warmup_steps: 5, steps: 20}"
CONSTANT = "{kind: constant, peak: 1, warmup_steps: 400}"
TEXT = "{tfkit: 1, name: x, model: x.yaml, stopping: {max_steps: 9}, schedule: %s}"


def test_noam_has_the_papers_peak():
    options = NoamOptions()
    rates = [noam(options, step, 512) for step in range(1, 20_001)]
    assert max(rates) == rates[3999]
    assert math.isclose(rates[3999], 6.987712429686843e-4, rel_tol=1e-12)  # (512 * 4000)^-0.5
    assert math.isclose(rates[0], 512**-0.5 * 4000**-1.5)
    assert math.isclose(rates[15_999], rates[3999] / 2)


def test_inverse_sqrt_is_noam_with_its_peak_named():
    peak = (256 * 800) ** -0.5
    for step in (1, 5, 799, 800, 801, 50_000):
        found = inverse_sqrt(PeakOptions(peak=peak, warmup_steps=800), step, 999)
        assert math.isclose(found, noam(NoamOptions(warmup_steps=800), step, 256), rel_tol=1e-12)


def test_cosine_is_torchs_after_the_warm_up():
    parameter = torch.nn.Parameter(torch.zeros(1))
    optimiser = torch.optim.SGD([parameter], lr=0.1)
    theirs = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, T_max=90, eta_min=0.01)
    options = DecayOptions(peak=0.1, warmup_steps=10, steps=100, floor=0.01)
    for step in range(10, 101):
        assert math.isclose(cosine(options, step, 1), optimiser.param_groups[0]["lr"], rel_tol=1e-9)
        optimiser.step()
        theirs.step()
    assert cosine(options, 5, 1) == 0.05
    assert cosine(options, 1000, 1) == 0.01


def test_halving_is_that_of_luong():
    """The paper: 12 epochs, rate 1, "after 8 epochs, we begin to halve the learning rate every epoch"."""
    options = HalvingOptions(peak=1.0, start=80, every=10)
    rates = [halving(options, step, 1) for step in range(1, 121)]
    expected, rate = [], 1.0
    for epoch in range(1, 13):
        rate = rate / 2 if epoch > 8 else rate
        expected += [rate] * 10
    assert rates == expected


def test_linear_is_hugging_faces():
    from transformers import get_linear_schedule_with_warmup

    optimiser = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    theirs = get_linear_schedule_with_warmup(optimiser, num_warmup_steps=7, num_training_steps=50)
    options = DecayOptions(peak=0.1, warmup_steps=7, steps=50)
    for step in range(1, 60):
        optimiser.step()
        theirs.step()
        assert math.isclose(linear(options, step, 1), optimiser.param_groups[0]["lr"], rel_tol=1e-12)
    options = DecayOptions(peak=0.1, warmup_steps=10, steps=20, floor=0.02)
    assert [linear(options, step, 1) for step in (10, 15, 20, 99)] == pytest.approx([0.1, 0.06, 0.02, 0.02], rel=1e-12)


def test_constant_warms_up_and_stays():
    options = PeakOptions(peak=0.5, warmup_steps=4)
    assert [constant(options, step, 1) for step in (1, 2, 4, 5, 999)] == [0.125, 0.25, 0.5, 0.5, 0.5]


@pytest.mark.parametrize(
    ("written", "message"),
    [
        ("{kind: cosine, peak: 1.0, warmup_steps: 5, steps: 5}", "`steps` is 5, not more than `warmup_steps`, which is 5"),
        ("{kind: cosine, peak: 1.0, steps: 5, floor: 2.0}", "`floor` is 2.0, more than `peak`, which is 1.0"),
        ("{kind: noam, warmup: 5}", "unknown key `warmup`; did you mean `warmup_steps`?"),
        ("cosin", "unknown schedule `cosin`; did you mean `cosine`?"),
        ("inverse_sqrt", "`peak` is missing"),
        ("{kind: noam, warmup_steps: 0}", "at least 1 is expected"),
    ],
)
def test_a_wrong_schedule_is_reported_with_its_location(written, message):
    with pytest.raises(SpecError) as caught:
        recipe_of(TEXT % written, "r.yaml")
    assert message in str(caught.value)
    assert str(caught.value).startswith("r.yaml:1:")


@pytest.mark.parametrize(
    ("schedule", "last", "done", "words"),
    [
        (COSINE, 20, 0, None),
        (COSINE, 21, 0, "the learning rate is 0 from step 20 on, and the last step is 21"),
        (LINEAR, 40, 0, "`schedule.steps: 40`, a `schedule.floor` above 0, or `stopping.max_steps: 20`"),
        (LINEAR.replace("}", ", floor: 0.1}"), 40, 0, None),
        (LINEAR, None, 0, None),
        (LINEAR, None, 20, "from step 20 on, and 20 steps are made; a resumed run keeps its schedule"),
        (LINEAR, 20, 20, None),
        ("{kind: noam}", 5, 0, "rises until step 4,000, and the last step is 5; write `schedule.warmup_steps: 1`"),
        (CONSTANT, 399, 0, "rises until step 400, and the last step is 399"),
        (CONSTANT, 400, 0, None),
        (CONSTANT, 50, 40, "rises until step 400, and the last step is 50; a resumed run keeps its schedule"),
        (CONSTANT, None, 0, None),
    ],
)
def test_a_rate_of_0_and_a_warm_up_without_an_end_have_a_warning(schedule, last, done, words):
    warning = schedule_warning(recipe_of(TEXT % schedule, "r.yaml"), last, done)
    assert (warning is None) == (words is None)
    if warning is not None:
        assert str(warning).startswith("r.yaml:1:")
        assert warning.code == "TFK131"
        assert words in str(warning)
