"""The share of given input tokens by step, and which data have one."""

import math

import pytest

from tfkit import InputError, SpecError
from tfkit.recipe import check_teacher_forcing, recipe_of

TEXT = "{tfkit: 1, name: x, model: x.yaml, stopping: {max_steps: 9}, %s}"


def ratios(written, steps):
    part = recipe_of(TEXT % f"teacher_forcing: {written}", "x.yaml").teacher_forcing
    return [part.entry.ratio(part.options, step) for step in steps]


def test_the_schedules():
    assert ratios("{kind: constant, ratio: 0.75}", (1, 500)) == [0.75, 0.75]
    assert ratios("{kind: linear, start: 0.9, end: 0.5, steps: 5}", range(1, 7)) == pytest.approx(
        [0.9, 0.8, 0.7, 0.6, 0.5, 0.5]
    )
    assert ratios("{kind: linear, steps: 3}", (1, 2, 3)) == [1.0, 0.5, 0.0]
    late = 100 * math.log(100)
    found = ratios("{kind: inverse_sigmoid, k: 100}", (1, math.floor(late), math.ceil(late), 10**9))
    assert found[0] == pytest.approx(100 / (100 + math.exp(0.01)))
    assert found[1] > 0.5 > found[2]
    assert 0.0 <= found[3] < 1e-300


def test_all_input_tokens_are_given_unless_written():
    recipe = recipe_of(TEXT % "seed: 1", "x.yaml")
    assert recipe.teacher_forcing is None
    assert "teacher_forcing" not in recipe.written()  # a run of an older version resumes


@pytest.mark.parametrize(
    "written", ["{kind: constant}", "{kind: constant, ratio: 1.5}", "{kind: linear, steps: 1}", "{kind: exponential, k: 2}"]
)
def test_wrong_values_are_refused(written):
    with pytest.raises(SpecError, match="teacher_forcing"):
        ratios(written, ())


@pytest.mark.parametrize("data", ["{kind: masked, text: x}", "{kind: classification, table: x}"])
def test_data_without_a_decoder_have_no_share(data):
    recipe = recipe_of(TEXT % f"data: {data}, teacher_forcing: {{kind: constant, ratio: 0.5}}", "x.yaml")
    with pytest.raises(InputError, match="have no input tokens that a model predicts"):
        check_teacher_forcing(recipe)
