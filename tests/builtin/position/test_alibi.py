from __future__ import annotations

import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor

from tfkit.builtin.position.score_biases import alibi as build, slopes
from tfkit.plugin import LinearBias, NoOptions
from tfkit.plugin.model_parts import PositionSite

CPU = torch.device("cpu")


@pytest.mark.parametrize("heads", [1, 2, 4, 8, 16, 32, 64])
def test_powers_of_two_are_the_closed_form(heads):
    expected = [2 ** (-8 * head / heads) for head in range(1, heads + 1)]
    assert slopes(heads, CPU).tolist() == pytest.approx(expected, rel=2**-23)


def test_published_lists():
    eight = [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]
    assert slopes(8, CPU).tolist() == eight
    twelve = [*eight, 0.5**0.5, 0.5**1.5, 0.5**2.5, 0.5**3.5]
    assert slopes(12, CPU).tolist() == pytest.approx(twelve, rel=2**-23)


@pytest.mark.parametrize("heads", [3, 5, 6, 7, 8, 12, 13, 20, 31, 33, 71, 112])
def test_any_head_count_is_blooms(heads):
    # Bloom's bias of key 1 is the slope itself; it takes its powers one after the other in float32.
    theirs = build_alibi_tensor(torch.ones(1, 2, dtype=torch.int64), heads, torch.float32)[:, 0, 1]
    assert slopes(heads, CPU).tolist() == pytest.approx(theirs.tolist(), rel=heads * 2**-23)


@pytest.mark.parametrize("heads", range(1, 40))
def test_slopes_are_distinct_and_below_one(heads):
    found = slopes(heads, CPU)
    assert found.shape == (heads,)
    assert found.dtype is torch.float32
    assert len(set(found.tolist())) == heads
    assert (found > 0).all()
    assert (found < 1).all()


def test_bias_is_the_slopes_and_no_parameter(span_of):
    scheme = build(NoOptions(), PositionSite(0, 8, 4))
    span = span_of(3, dtype=torch.bfloat16)
    bias = scheme.bias(torch.zeros(1, 8, 3, 4), scheme.prepare(span), 7.0)
    assert isinstance(bias, LinearBias)
    assert bias.slopes.dtype is torch.float32
    assert torch.equal(bias.slopes, slopes(8, CPU))
    assert not list(scheme.parameters())
