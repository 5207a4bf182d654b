"""The kernels compute the formula of `tfkit.cpu.int8` bit for bit, for every remainder of rows, channels and features. Their
laws are judged in the tests of the conformance kit, as those of every installed kernel."""

from __future__ import annotations

import pytest
import tfkit_simd as plugin
import torch

from tfkit.cpu.int8 import SMALLEST, is_supported
from tfkit.plugin.model_parts import load


@pytest.fixture(params=plugin.INT8_KERNELS, ids=lambda kernel: kernel.name)
def kernel(request):
    if not is_supported(request.param):
        pytest.skip(f"not run: this processor has not {' and '.join(request.param.needs)}")
    return request.param


def quantised(outer, inner):
    integers = torch.randint(-127, 128, (outer, inner), dtype=torch.int8)
    return integers, torch.rand(outer) + 0.1


def formula(x, integers, scales, bias, levels):
    rows = x.abs().amax(1, keepdim=True).clamp(min=SMALLEST) / levels
    sums = ((x / rows).round().double() @ integers.double().t()).float()
    found = sums * scales * rows
    return found if bias is None else found + bias


@pytest.mark.parametrize(("outer", "inner"), [(1, 1), (7, 33), (32, 4), (33, 5), (64, 64), (300, 130), (40, 1025)])
@pytest.mark.parametrize("biased", [False, True])
def test_the_bits_are_those_of_the_formula(kernel, outer, inner, biased):
    integers, scales = quantised(outer, inner)
    bias = torch.randn(outer) if biased else None
    packed, multiply = load(kernel.pack)(integers, scales), load(kernel.multiply)
    x = torch.randn(41, inner) * torch.logspace(-3, 3, 41)[:, None]
    expected = formula(x, integers, scales, bias, kernel.levels)
    for rows in (*range(1, 10), 41):
        assert torch.equal(multiply(x[:rows], packed, bias), expected[:rows])
    apart = torch.randn(inner, 41).t()  # features are not contiguous
    assert torch.equal(multiply(apart, packed, bias), formula(apart, integers, scales, bias, kernel.levels))
    within = torch.randn(41, inner + 3)[:, :inner]  # rows are apart
    assert torch.equal(multiply(within, packed, bias), formula(within, integers, scales, bias, kernel.levels))


def test_more_rows_than_the_cache_holds(kernel):
    integers, scales = quantised(40, 1024)
    x = torch.randn(700, 1024)
    found = load(kernel.multiply)(x, load(kernel.pack)(integers, scales), None)
    assert torch.equal(found, formula(x, integers, scales, None, kernel.levels))


def test_several_threads_compute_the_same_bits(kernel):
    integers, scales = quantised(1030, 512)
    packed, x, before = load(kernel.pack)(integers, scales), torch.randn(50, 512), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = load(kernel.multiply)(x, packed, None)
        torch.set_num_threads(3)
        together = load(kernel.multiply)(x, packed, None)
    finally:
        torch.set_num_threads(before)
    assert torch.equal(alone, together)


def test_what_the_kernel_cannot_read_is_refused(kernel):
    packed = load(kernel.pack)(*quantised(8, 16))
    for wrong in (torch.randn(2, 15), torch.randn(2, 16).double(), torch.randn(2, 16, device="meta")):
        with pytest.raises(ValueError, match="x is"):
            load(kernel.multiply)(wrong, packed, None)
    with pytest.raises(ValueError, match="the bias is"):
        load(kernel.multiply)(torch.randn(2, 16), packed, torch.randn(7))
