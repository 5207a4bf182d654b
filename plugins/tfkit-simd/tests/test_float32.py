"""What `check_product` does not draw: sizes at the ends of panels, rows apart, threads, arguments, and that searches use it."""

from __future__ import annotations

import pytest
import tfkit_simd as plugin
import torch
from tfkit_simd import float32

import tfkit
from tfkit.cpu import small_batch
from tfkit.cpu.float32 import is_supported
from tfkit.cpu.packed_weight import PackedWeight, SearchProducts
from tfkit.cpu.product_table import ProductRow, ProductTable
from tfkit.inspection import float32_kernel_here
from tfkit.plugin.model_parts import load

pytestmark = pytest.mark.skipif(not plugin.AVX2, reason="not run: this processor has no AVX2")


@pytest.fixture(params=plugin.FLOAT32_KERNELS, ids=lambda kernel: kernel.name)
def kernel(request):
    if not is_supported(request.param):
        pytest.skip(f"not run: this processor has not {' and '.join(request.param.needs)}")
    return request.param


def whole_numbers(*shape):
    """Their sums of products are exact in float32, in any order."""
    return torch.randint(-9, 10, shape).float()


@pytest.mark.parametrize(
    ("outer", "inner"), [(3, 0), (1, 1), (7, 33), (16, 4), (31, 5), (32, 64), (33, 1023), (70, 1025), (17, 2500)]
)
@pytest.mark.parametrize("biased", [False, True])
def test_every_remainder_of_rows_channels_and_features(kernel, outer, inner, biased):
    weight, bias, x = whole_numbers(outer, inner), whole_numbers(outer) if biased else None, whole_numbers(260, inner)
    packed, multiply = load(kernel.pack)(weight), load(kernel.multiply)
    expected = torch.nn.functional.linear(x.double(), weight.double(), None if bias is None else bias.double()).float()
    for rows in (*range(1, 27), 120, 121, 240, 241, 260):
        assert torch.equal(multiply(x[:rows], packed, bias), expected[:rows])
    assert torch.equal(multiply(x.t().contiguous().t(), packed, bias), expected)  # features are not contiguous
    assert torch.equal(multiply(torch.cat([x, x], 1)[:, :inner], packed, bias), expected)  # rows are apart
    assert multiply(x[:0], packed, bias).shape == (0, outer)


def test_rows_have_the_same_bits_alone_and_with_any_number_of_threads(kernel):
    weight, bias, x = torch.randn(1030, 2100), torch.randn(1030), torch.randn(50, 2100)
    packed, multiply, before = load(kernel.pack)(weight), load(kernel.multiply), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        expected = multiply(x, packed, bias)
        torch.set_num_threads(3)
        assert torch.equal(multiply(x, packed, bias), expected)
    finally:
        torch.set_num_threads(before)
    for row in (0, 7, 49):
        assert torch.equal(multiply(x[row : row + 1], packed, bias)[0], expected[row])


@pytest.mark.parametrize(("fastest", "used"), [("installed", True), ("packed", False), ("mkl", False)])
def test_a_measured_table_decides(fastest, used, monkeypatch):
    rows = [ProductRow(torch.get_num_threads(), 64, 48, (1, 9), fastest, "mkl")]
    monkeypatch.setattr(small_batch, "TABLE", ProductTable("cpu.json", rows))
    search, copies = SearchProducts(plugin.FLOAT32_KERNELS[-1:]), PackedWeight()
    calls, multiply = [], search.multiply
    search.multiply = lambda *arguments: calls.append(arguments) or multiply(*arguments)  # of this search alone
    x, weight = torch.randn(4, 1, 48), torch.randn(64, 48)
    with torch.no_grad():
        for _ in range(20):
            torch.testing.assert_close(
                small_batch.small_batch_linear(x, weight, None, copies, search)[:, 0], x[:, 0] @ weight.t()
            )
    assert bool(calls) is used


@pytest.mark.parametrize(
    ("x", "bias", "words"),
    [
        (torch.zeros(2, 5), None, r"x is \(2, 5\) torch.float32 on cpu, expected \(N, 4\)"),
        (torch.zeros(2, 4).double(), None, "torch.float64"),
        (torch.zeros(2, 4, device="meta"), None, "on meta"),
        (torch.zeros(2, 4), torch.zeros(2), r"the bias is \(2,\)"),
        (torch.zeros(2, 4), torch.zeros(3).double(), "torch.float64"),
    ],
)
def test_wrong_arguments_are_refused(x, bias, words):
    with pytest.raises(ValueError, match=words):
        float32.multiply_avx2(x, float32.pack_avx2(torch.zeros(3, 4)), bias)


def test_weights_packed_for_other_instructions_are_refused():
    with pytest.raises(ValueError, match="panels of 32, for other instructions"):
        float32.multiply_avx2(torch.zeros(2, 4), float32.pack_avx512(torch.zeros(3, 4)), None)


def test_searches_use_it_until_a_weight_changes(monkeypatch):
    model = tfkit.build("specs/transformer-tiny.yaml", seed=0).eval()
    assert float32_kernel_here(model.float32_kernels).name in ("simd.avx512", "simd.avx2")
    calls, kernel, source = [], float32.float32_product, torch.randint(4, 100, (3, 5))
    monkeypatch.setattr(float32, "float32_product", lambda *arguments: calls.append(arguments[5:]) or kernel(*arguments))
    before = tfkit.greedy(model, source=source, max_new_tokens=30)
    assert (3, 128, 128, 10_000) in calls
    again = len(calls)
    assert torch.equal(tfkit.greedy(model, source=source, max_new_tokens=30).ids, before.ids)
    assert len(calls) == 2 * again  # the first step is computed like all others
    model.nodes["source"].table().data.mul_(-1)  # as libraries of moving averages write, past torch's version counter
    changed = tfkit.greedy(model, source=source, max_new_tokens=30)
    assert not torch.equal(changed.ids, before.ids)
    model.float32_kernels = ()
    assert torch.equal(changed.ids, tfkit.greedy(model, source=source, max_new_tokens=30).ids)


def test_a_fingerprint_changes_with_every_number_and_with_their_order(kernel):
    take_all = load(kernel.fingerprints)

    def take(weight):
        return take_all([weight])[0]

    several = [torch.randn(shape) for shape in ((3, 5), (70,), (1, 1), (64, 2))] + [torch.randn(9, 8).t()]
    assert torch.equal(take_all(several), torch.stack([take(weight.clone()) for weight in several]))
    for count in (1, 15, 64, 65, 200):
        weight = torch.randn(count)
        weight[-1] = torch.nan
        before, wide = take(weight), weight.view(1, count)
        assert torch.equal(take(wide.clone()), before)
        for place in range(count):
            for changed in (torch.nextafter(weight[place], torch.tensor(9.0)), -weight[place]):
                other = weight.clone()
                other[place] = changed
                assert torch.equal(take(other), before) == (other.view(torch.int32).equal(weight.view(torch.int32)))
    identity = torch.eye(64)
    for other in (-identity, identity * 2.0, identity.roll(1, 0), identity.flip(0), 1.0 - identity):
        assert not torch.equal(take(other), take(identity))
    signs = torch.randn(512, 128)
    for rows in (slice(None), slice(0, 2), slice(3, 512, 2)):  # signs that change together
        other = signs.clone()
        other[rows] *= -1.0
        assert not torch.equal(take(other), take(signs))
