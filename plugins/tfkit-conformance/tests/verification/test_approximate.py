"""The bounds of what acts on tokens alone: torch's own modules stay within them in every dtype, and small mistakes do not."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from tfkit_conformance.verification.approximate import elementwise, exact, layer_norm, linear, product, rms_norm, weighted_sum

DTYPES = [torch.float64, torch.float32, torch.bfloat16, torch.float16]


def ratio(got, want):
    return float(((got.double() - want.value).abs() / want.bound).max())


@pytest.fixture
def drawn():
    def make(*shape, dtype, shift=0.0, seed=0):
        return (torch.randn(*shape, generator=torch.Generator().manual_seed(seed)) + shift).to(dtype)

    return make


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_linear(dtype, drawn):
    x, W, b = drawn(5, 64, dtype=dtype), drawn(9, 64, dtype=dtype, seed=1), drawn(9, dtype=dtype, seed=2)
    want = linear(exact(x), W, b)
    assert ratio(functional.linear(x, W, b), want) <= 1
    assert ratio(functional.linear(x, W), want) > 1
    assert ratio(functional.linear(x, W.roll(1, 0), b), want) > 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shift", [0.0, 30.0])
def test_norms(shift, dtype, drawn):
    x, w, b = drawn(7, 48, dtype=dtype, shift=shift), drawn(48, dtype=dtype, seed=1), drawn(48, dtype=dtype, seed=2)
    want = layer_norm(x, w, b, 1e-5)
    assert ratio(functional.layer_norm(x, (48,), w, b, 1e-5), want) <= 1
    assert ratio(functional.layer_norm(x, (48,), w, None, 1e-5), want) > 1
    assert ratio(functional.layer_norm(x, (48,), w, b, 1.0), want) > 1
    wide = torch.promote_types(dtype, torch.float32)
    root = rms_norm(x, w, 1e-6, False)
    assert ratio(functional.rms_norm(x.to(wide), (48,), w.to(wide), 1e-6).to(dtype), root) <= 1
    assert ratio(functional.layer_norm(x, (48,), w, None, 1e-6), root) > 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize(
    "function", [torch.relu, functional.gelu, functional.silu, torch.tanh, torch.square], ids=lambda f: f.__name__
)
def test_gated_features(function, dtype, drawn):
    x, W, V = drawn(6, 32, dtype=dtype), drawn(8, 32, dtype=dtype, seed=1), drawn(8, 32, dtype=dtype, seed=2)
    gate = linear(exact(x), W, None)
    want = product(elementwise(gate, function), linear(exact(x), V, None))
    got = function(functional.linear(x, W)) * functional.linear(x, V)
    assert ratio(got, want) <= 1
    assert ratio(functional.linear(x, W) * functional.linear(x, V), want) > 1


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_residual(dtype, drawn):
    x, y = drawn(4, 50, dtype=dtype), drawn(4, 50, dtype=dtype, seed=1)
    want = weighted_sum([(1.7, exact(x)), (0.3, exact(y))])
    assert ratio(1.7 * x + 0.3 * y, want) <= 1
    assert ratio(1.7 * x + 0.35 * y, want) > 1
