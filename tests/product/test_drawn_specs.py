"""Random valid specs of every part there is: each model keeps every promise.

`TFKIT_EXAMPLES=4` draws four times as many of each kind.
"""

from __future__ import annotations

import json
import os
from collections import Counter

import pytest
import torch
from hypothesis import HealthCheck, event, given, settings, strategies as st

import tfkit
from product.drawn import trials
from product.evaluated import Trial, causal, counts, round_trip, same_under_every_backend, sites_within_bounds, stepwise
from tfkit import load_catalogue
from whole_models.strategies import written_models

pytestmark = pytest.mark.exhaustive

CATALOGUE = load_catalogue()
DTYPES = [torch.float32, torch.float64, torch.bfloat16]
CHUNKS = st.lists(st.integers(1, 5), min_size=1, max_size=4).map(tuple)
DECODED = ("decoder", "encoder-decoder")


MANY = int(os.environ.get("TFKIT_EXAMPLES", "1"))


def asked(examples):
    # Hypothesis expects short draws; a whole spec takes longer. `REFUSED` counts what the rules filter.
    return settings(max_examples=MANY * examples, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much])


REFUSED = Counter()


@asked(50)
@given(written_models(CATALOGUE, deepest=4))
def test_a_drawn_model_keeps_the_rules_and_is_read_back_and_counted(written):
    """Fewer than three in a hundred are refused by the rules, so that filtering them costs nothing."""
    REFUSED["drawn"] += 1
    try:
        spec = tfkit.parse_spec(json.dumps(written), CATALOGUE)
        tfkit.graph_of(spec)
    except tfkit.SpecError:
        REFUSED["refused"] += 1
        assert REFUSED["refused"] <= 0.03 * max(100, REFUSED["drawn"])
        return
    trial = Trial(spec, CATALOGUE)
    round_trip(trial)
    counts(trial)


@asked(30)
@given(trials(CATALOGUE), st.sampled_from(DTYPES))
def test_every_backend_is_within_the_bound_at_every_site(trial, dtype):
    evaluated, _ = sites_within_bounds(trial, dtype)
    event("calls compared", evaluated)


@asked(20)
@given(trials(CATALOGUE))
def test_every_backend_gives_the_same_model(trial):
    same_under_every_backend(trial)


@asked(20)
@given(trials(CATALOGUE, DECODED), st.sampled_from(["eager", "auto"]))
def test_later_tokens_change_not_one_bit(trial, backend):
    event("tried", causal(trial, backend))  # not where every sequence has one token


@asked(20)
@given(trials(CATALOGUE, DECODED), CHUNKS, st.sampled_from(["eager", "auto"]))
def test_decoding_in_chunks_equals_one_pass(trial, chunks, backend):
    assert stepwise(trial, chunks, backend)
