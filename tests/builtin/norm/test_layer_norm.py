from __future__ import annotations

import pytest
import torch

from tfkit.builtin.norm.entries import LayerNormOptions
from tfkit.builtin.norm.norms import layer_norm as build


@pytest.mark.parametrize("bias", [True, False])
def test_equals_the_equation_in_float64(bias):
    torch.manual_seed(0)
    x = torch.randn(3, 5, 7, dtype=torch.float64)
    module = build(LayerNormOptions(eps=0.1, bias=bias), 7).double()
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_()
    variance = ((x - x.mean(-1, keepdim=True)) ** 2).mean(-1, keepdim=True)
    expected = (x - x.mean(-1, keepdim=True)) / (variance + 0.1).sqrt() * module.weight + (module.bias if bias else 0)
    torch.testing.assert_close(module(x), expected, rtol=1e-13, atol=1e-13)


def test_keeps_bfloat16_with_statistics_in_float32():
    torch.manual_seed(0)
    x = (torch.randn(4, 512) + 100).bfloat16()
    module = build(LayerNormOptions(), 512).bfloat16()
    exact = torch.nn.functional.layer_norm(x.double(), (512,))
    assert module(x).dtype is torch.bfloat16
    # One rounding to bfloat16, besides float32 statistics of numbers near 100.
    assert ((module(x).double() - exact).abs() <= 2**-8 * exact.abs() + 1e-4).all()


@pytest.mark.parametrize("eps", [1e-12, 1e-9, 1e-5])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_a_vector_of_equal_numbers_has_torchs_own_gradients_whatever_eps(dtype, eps):
    def results(norm, weight, bias):
        x = torch.tensor([[0.0] * 8, [3.0] * 8, [*range(8)]], dtype=dtype, requires_grad=True)
        y = norm(x)
        return y, *torch.autograd.grad(y, (x, weight, bias), torch.ones_like(y))

    module = build(LayerNormOptions(eps=eps), 8).to(dtype)
    weight, bias = torch.ones(8, dtype=dtype, requires_grad=True), torch.zeros(8, dtype=dtype, requires_grad=True)
    torchs = results(lambda x: torch.nn.functional.layer_norm(x, (8,), weight, bias, eps), weight, bias)
    for ours, theirs in zip(results(module, module.weight, module.bias), torchs, strict=True):
        assert torch.equal(ours.isnan(), theirs.isnan())
        assert torch.equal(ours.nan_to_num(), theirs.nan_to_num())
        if dtype != torch.float16 or eps > 65504.0**-2:
            assert ours.isfinite().all()
