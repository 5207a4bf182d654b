"""Products of few rows: the same numbers as torch's, whichever way they are computed."""

import pytest
import torch
from torch import nn
from torch.nn import functional

from tfkit.cpu import products, small_batch
from tfkit.cpu.packed_weight import PackedWeight, SearchProducts, searching
from tfkit.cpu.small_batch import Rule, rule_here, small_batch_linear
from tfkit.plugin.model_parts import Linear


def in_search(linear, x):
    with searching(SearchProducts()):
        return linear(x)


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("batch", "length"), [(1, 1), (2, 1), (3, 1), (2, 4), (9, 1), (1, 7)])
@pytest.mark.parametrize(("inner", "outer"), [(5, 11), (11, 5), (6, 6)])
def test_it_equals_the_linear_map(inner, outer, batch, length, bias, monkeypatch):
    monkeypatch.setattr(small_batch, "RULE", Rule(transposed=(2, 8)))
    linear = nn.Linear(inner, outer, bias, dtype=torch.float64)
    x = torch.randn(batch, length, inner, dtype=torch.float64)
    with torch.no_grad():
        # One sum of `inner` products and a bias: each rounding is at most half a unit of the sum of magnitudes.
        magnitude = functional.linear(x.abs(), linear.weight.abs(), None if linear.bias is None else linear.bias.abs())
        difference = (small_batch_linear(x, linear.weight, linear.bias, PackedWeight(), SearchProducts()) - linear(x)).abs()
        assert bool((difference <= 2 * (inner + 2) * 2.0**-53 * magnitude).all())


def test_gradients_take_the_ordinary_way():
    linear = Linear(4, 6)
    x = torch.randn(2, 1, 4, requires_grad=True)
    in_search(linear, x).sum().backward()
    torch.testing.assert_close(x.grad, linear.weight.sum(0).expand(2, 1, 4))


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize(("batch", "length"), [(300, 1), (40, 7)])
def test_many_rows_equal_the_linear_map_with_every_kernel(batch, length, bias, monkeypatch, processor):
    monkeypatch.setattr(small_batch, "MIN_PLAIN_WORK", 1)
    monkeypatch.setattr(small_batch, "RULE", Rule(onednn=True))  # whichever is faster on this processor
    called = []
    if (product := products.probe()) is not None:
        for name in ("MULTIPLY", "PRODUCT"):
            monkeypatch.setattr(products, name, lambda *given: (called.append(1), product(*given))[1])
    linear = Linear(33, 70, bias)
    wide = torch.randn(batch, length, 2 * 33)
    for x in (wide[..., :33].contiguous(), wide[..., :33], wide.view(batch, length, 33, 2)[..., 1]):
        with torch.no_grad():
            exact = functional.linear(x.double(), linear.weight.double(), None if linear.bias is None else linear.bias.double())
            magnitude = functional.linear(x.abs(), linear.weight.abs(), None if linear.bias is None else linear.bias.abs())
            found = in_search(linear, x)
            assert found.shape == (batch, length, 70)
            assert bool(((found - exact).abs() <= (33 + 2) * 2.0**-24 * magnitude).all())
    assert len(called) == (0 if product is None else 3)
    with torch.no_grad(), torch.autocast("cpu"):
        assert in_search(linear, x).dtype == torch.bfloat16
    with torch.no_grad():
        assert torch.equal(in_search(linear.double(), x.double()), functional.linear(x.double(), linear.weight, linear.bias))
    monkeypatch.setattr(torch._C, "_get_mkldnn_enabled", lambda: False)
    with torch.no_grad():
        assert torch.equal(in_search(linear.float(), x), functional.linear(x, linear.weight, linear.bias))


@pytest.mark.parametrize(
    ("vendor", "capability", "transposed", "packed"),
    [
        ("AuthenticAMD", "AVX512", {(4, 37000, 512), (8, 2048, 512), (4, 512, 512)}, {(60, 2048, 512), (300, 10000, 128)}),
        ("AuthenticAMD", "AVX2", set(), {(4, 37000, 512), (2, 512, 512), (60, 2048, 512), (300, 10000, 128)}),
        ("GenuineIntel", "AVX512", {(8, 37000, 512), (8, 2048, 512)}, {(4, 512, 512), (60, 2048, 512), (60, 512, 2048)}),
        ("GenuineIntel", "AVX2", set(), {(8, 37000, 512)}),
        ("", "DEFAULT", {(4, 37000, 512), (8, 2048, 512)}, set()),
    ],
)
def test_the_rule_depends_on_the_processor(vendor, capability, transposed, packed, processor):
    processor(vendor, capability)
    rule = rule_here()
    assert all(rule.transposes(*shape) for shape in transposed)
    assert all(rule.packs(*shape) for shape in packed)
    assert not any(rule.transposes(*shape) for shape in ((1, 37000, 512), (8, 512, 2048)))
    if vendor == "GenuineIntel":
        assert not any(rule.transposes(rows, 37000, 512) for rows in (2, 4, 6))
        assert not rule.packs(300, 10000, 128)
    if vendor != "AuthenticAMD" and capability != "AVX512":
        assert not rule.packs(60, 2048, 512)
