"""Batches: every row once, within the limit, little padding, and the same for the same seed."""

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tfkit.data import epoch_of

LENGTHS = st.lists(st.tuples(st.integers(1, 40), st.integers(1, 40)), min_size=1, max_size=120)


def columns(pairs):
    source, target = zip(*pairs, strict=True)
    return {"source": np.array(source, np.int32), "target": np.array(target, np.int32)}


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(pairs=LENGTHS, tokens=st.integers(40, 400), seed=st.integers(0, 5))
def test_every_row_is_met_once_within_the_limit(pairs, tokens, seed):
    lengths = columns(pairs)
    epoch = epoch_of(lengths, tokens, seed, 1)
    assert sorted(np.concatenate(epoch.batches).tolist()) == list(range(len(pairs)))
    for batch in epoch.batches:
        assert max(int(column[batch].max()) for column in lengths.values()) * len(batch) <= tokens
    padded = sum(len(batch) * int(column[batch].max()) for batch in epoch.batches for column in lengths.values())
    assert epoch.padding == pytest.approx(1 - sum(map(sum, pairs)) / padded)


def test_the_same_seed_and_number_give_the_same_epoch_and_others_do_not():
    draw = np.random.default_rng(0)
    lengths = {"target": draw.integers(1, 30, 500).astype(np.int32)}

    def shown(seed, number):
        return [batch.tolist() for batch in epoch_of(lengths, 200, seed, number).batches]

    assert shown(1, 1) == shown(1, 1)
    assert shown(1, 1) != shown(1, 2)
    assert shown(1, 1) != shown(2, 1)


def test_real_lengths_leave_little_padding():
    draw = np.random.default_rng(0)
    source = np.clip(draw.normal(14, 4, 20_000), 3, 40).astype(np.int32)
    target = np.clip(source + draw.normal(0, 2, 20_000), 3, 40).astype(np.int32)
    assert epoch_of({"source": source, "target": target}, 4096, 0, 1).padding < 0.06
