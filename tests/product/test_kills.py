"""The checks can fail: parts that break one rule each are detected; correct third-party parts pass like built-in ones."""

from __future__ import annotations

import pytest
import torch
from hypothesis import Phase, find, settings

from product.drawn import trials
from product.evaluated import Trial, causal, counts, round_trip, same_under_every_backend, sites_within_bounds, stepwise
from product.foreign import Right, Wrong
from tfkit import load_catalogue
from tfkit.spec import to_yaml
from tfkit_conformance.finding import Violation
from whole_models.covering import covering, pairs_in, pairs_of
from whole_models.part_rows import PLAIN, factors_of, refusal, spec_of

pytestmark = pytest.mark.exhaustive

BUILTIN = load_catalogue()
WRONG = BUILTIN.with_plugin(Wrong(), "wrong")
RIGHT = BUILTIN.with_plugin(Right(), "right")


def trial(catalogue=WRONG, **row):
    return Trial(spec_of({**PLAIN, **row}, catalogue), catalogue, seed=1)


@pytest.mark.parametrize("shape", ["decoder", "encoder-decoder"])
@pytest.mark.parametrize("name", ["one_more_key", "billionth", "key_gradient"])
def test_a_wrong_backend_gives_another_model(name, shape):
    with pytest.raises(Violation, match=f"under `foreign.{name}`"):
        same_under_every_backend(trial(shape=shape), names=(f"foreign.{name}",))


@pytest.mark.parametrize(
    ("name", "dtype"), [("one_more_key", torch.bfloat16), ("billionth", torch.float64), ("key_gradient", torch.float32)]
)
def test_a_wrong_backend_exceeds_the_bound_at_its_site(name, dtype):
    with pytest.raises(AssertionError, match=f"foreign.{name}"):
        sites_within_bounds(trial(), dtype, (f"foreign.{name}",))


def test_a_position_scheme_that_forgets_where_it_is_is_found_while_decoding():
    wrong = trial(position="foreign.stuck")
    assert same_under_every_backend(wrong, names=("sdpa",))["sdpa"] < 1
    with pytest.raises(Violation, match="in chunks of"):
        stepwise(wrong, (2, 1), "eager")


def test_a_norm_over_tokens_lets_later_ones_show():
    with pytest.raises(Violation, match="with other tokens from"):
        causal(trial(norm="foreign.over_tokens"), "eager")


GENERATED = settings(phases=[Phase.generate], max_examples=200, database=None)
FOREIGN = ("foreign.shift", "foreign.centre", "foreign.bend", "foreign.mixer")


@pytest.mark.parametrize("name", FOREIGN)
def test_a_strangers_part_is_drawn(name):
    found = find(trials(RIGHT), lambda trial: name in to_yaml(trial.spec), settings=GENERATED)
    right = Trial(found.spec, RIGHT)
    round_trip(right)
    counts(right)
    same_under_every_backend(right)


def test_a_strangers_parts_enter_the_covering_array():
    """Beside few of the built-in parts: `test_covering.py` has them all."""
    kept = {*PLAIN.values(), *FOREIGN}
    factors = {
        name: [value for number, value in enumerate(values) if number < 3 or value in kept]
        for name, values in factors_of(RIGHT).items()
    }
    array = covering(factors, {name: PLAIN[name] for name in factors}, lambda row: refusal(row, RIGHT))
    met = {pair for row in array.rows for pair in pairs_in(row)}
    assert met | set(array.excluded) == set(pairs_of(factors))
    assert {value for row in array.rows for value in row.values()} >= set(FOREIGN)
    row = next(row for row in array.rows if row["position"] == "foreign.shift" and row["shape"] == "decoder")
    assert stepwise(Trial(spec_of(row, RIGHT), RIGHT), (1, 2), "eager")
