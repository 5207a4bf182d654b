"""Our own draw of dropout on a CPU: Bernoulli's numbers, torch's generator, torch's gradients."""

import math

import pytest
import torch
from torch import nn

from tfkit.nn.layers import Dropout


@pytest.mark.parametrize("p", [2.0**-20, 0.1, 0.3, 0.5, 0.9])
@pytest.mark.parametrize("shape", [(1000, 997), (3, 333_333)])
def test_the_share_and_the_scale(p, shape):
    torch.manual_seed(0)
    x = torch.rand(shape) + 0.5
    dropped = Dropout(p)(x)
    kept = dropped != 0
    torch.testing.assert_close(dropped[kept], x[kept] / (1 - p))
    count = kept.numel()
    assert abs(int(kept.sum()) - count * (1 - p)) <= 5 * math.sqrt(count * p * (1 - p))


def test_neighbours_are_independent():
    """Two numbers are made of one draw of the generator."""
    torch.manual_seed(0)
    kept = Dropout(0.5)(torch.ones(2**20)) != 0
    for distance in (1, 2, 3, 624, 1248):
        same = int((kept[distance:] == kept[:-distance]).sum())
        count = kept.numel() - distance
        assert abs(same - count / 2) <= 5 * math.sqrt(count / 4)


def test_the_seed_determines_the_samples_and_calls_without_one_differ():
    drop, x = Dropout(0.4), torch.randn(7, 5)
    torch.manual_seed(3)
    first, second = drop(x), drop(x)
    state = torch.get_rng_state()
    third = drop(x)
    torch.manual_seed(3)
    assert torch.equal(drop(x), first)
    assert not torch.equal(first != 0, second != 0)
    torch.set_rng_state(state)
    assert torch.equal(drop(x), third)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_dtype_and_gradient(dtype):
    x = torch.randn(4, 6, dtype=dtype).transpose(0, 1).requires_grad_()
    y = Dropout(0.25)(x)
    assert y.dtype is dtype
    y.sum().backward()
    torch.testing.assert_close(x.grad, torch.where(y != 0, 1 / 0.75, 0.0).to(dtype))


def test_functions_equal_those_of_torch():
    x = torch.randn(4, 6)
    for drop in (Dropout(0.0), Dropout(0.4).eval()):
        assert torch.equal(drop(x), x)
    assert not Dropout(1.0)(x).any()
    assert Dropout(0.4)(x.to("meta")).is_meta
    assert Dropout(0.4)(x[:0]).shape == (0, 6)
    torch.manual_seed(0)
    inplace = Dropout(0.4, inplace=True)(y := x.clone())
    assert inplace is y
    assert isinstance(Dropout(0.1), nn.Dropout)
    assert repr(Dropout(0.1)) == "Dropout(p=0.1, inplace=False)"
    assert torch.compile(Dropout(0.4), backend="eager", fullgraph=True)(x).shape == x.shape
