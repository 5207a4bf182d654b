"""Numbers out of range are refused with their rule, before anything is allocated."""

import math

import pytest
import torch

import tfkit
from tfkit import InputError

HUGE = (10**15, 10**40, 10**5000)
WRONG = (math.nan, math.inf, "x", -1, 1.5, [1], True)
IDS = torch.ones(2, 4, dtype=torch.int64)
SEARCHES = {
    "beams": lambda model, value: tfkit.beam_search(model, source=IDS, beams=value),
    "n_best": lambda model, value: tfkit.beam_search(model, source=IDS, n_best=value),
    "samples": lambda model, value: tfkit.sample(model, source=IDS, max_new_tokens=2, samples=value),
    "max_new_tokens": lambda model, value: tfkit.greedy(model, source=IDS, max_new_tokens=value),
    "extra_length": lambda model, value: tfkit.Search(extra_length=value),
    "capacity": lambda model, value: model.start(source=IDS, capacity=value),
}


@pytest.fixture(scope="module")
def model():
    return tfkit.build("specs/tiny-alibi.yaml").eval()


@pytest.mark.parametrize("name", SEARCHES)
def test_whole_numbers(model, name):
    for value in (*WRONG, *HUGE):
        with pytest.raises(InputError, match=f"TFK07[378] {name} is .*whole number"):
            SEARCHES[name](model, value)


def test_numbers_that_are_not_whole():
    for value in (math.nan, math.inf, "x", -1, [1], True, 1e308, *HUGE):
        for make, name in (
            (tfkit.GnmtLengthPenalty, "alpha of GnmtLengthPenalty"),
            (tfkit.PowerLengthPenalty, "alpha of PowerLengthPenalty"),
            (lambda value: tfkit.Search(length_factor=value), "length_factor"),
            (lambda value: tfkit.Search(kind="sample", temperature=value), "temperature"),
        ):
            with pytest.raises(InputError, match=f"TFK078 {name} is .*; it is a number from 0"):
                make(value)


def test_streams_and_seeds(model):
    for value in (5, "xy", [1], [1, -1], [1, 2**64]):
        with pytest.raises(InputError, match=r"TFK078 (streams is|a stream is|there are 1 streams) "):
            tfkit.sample(model, source=IDS, max_new_tokens=2, streams=value)
    for value in (*WRONG, 2**64, *HUGE[1:]):
        with pytest.raises(InputError, match=r"TFK008 seed is .*whole number from 0 to 18,446,744,073,709,551,615"):
            tfkit.build("specs/tiny-alibi.yaml", seed=value)


def test_lengths_are_those_of_rows(model):
    for lengths, row in (([5, 1], 0), ([4, -1], 1), ([2**40, 1], 0)):
        with pytest.raises(InputError, match=f"TFK070 `source` has rows of 4, and row {row} of its lengths is"):
            model(source=IDS, target=IDS, lengths={"source": torch.tensor(lengths)})
    assert model(source=IDS, target=IDS, lengths={"source": torch.tensor([4, 1])}).logits.isfinite().all()


def test_tables_and_names_of_another_type_are_refused(model):
    for name in ("masks", "lengths", "segments"):
        with pytest.raises(InputError, match=f"TFK073 `{name}` is a Tensor"):
            model(source=IDS, target=IDS, **{name: IDS})
    for weights in ([5], 5, [None]):
        with pytest.raises(InputError, match=r"TFK076 .* is no name of an attention site"):
            model(source=IDS, target=IDS, weights=weights)
    with pytest.raises(InputError, match="TFK076 5 is no name"):
        model.set_backend("eager", 5)
