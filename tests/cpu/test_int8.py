"""int8 products: within their bound of the float64 product, each row as alone, and exact sums of the largest numbers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import tfkit
from small_translator import SOURCES, finds_in_a_batch_as_alone, small
from tfkit.cli import options
from tfkit.cpu import int8
from tfkit.cpu.low_precision import CANDIDATES, LowPrecisionHead, LowPrecisionLinear, largest
from tfkit.inspection import Int8Weight
from tfkit.nn import precision
from tfkit.nn.precision import round_weights
from tfkit.plugin import Int8Kernel

KERNELS: list[Int8Kernel] = tfkit.load_catalogue().entries("int8_kernel")
"""Of every installed plugin."""


@pytest.fixture(params=KERNELS, ids=lambda kernel: kernel.name)
def kernel(request: pytest.FixtureRequest) -> Int8Kernel:
    if not int8.is_supported(request.param):
        pytest.skip(f"not run: this processor has not {' and '.join(request.param.needs)}")
    return request.param


@pytest.fixture
def everything(small_weights_rounded: None) -> None:
    """Small weights become int8 too."""
    if int8.fastest(KERNELS) is None:
        pytest.skip("not run: this processor has no int8 products")


def bound(x: Tensor, weight: Tensor, levels: int) -> Tensor:
    """The largest error of x W^T: half a step for each number, and a few roundings of float32."""
    x, weight = x.double().abs(), weight.double().abs()
    step, channel_step = x.amax(1, keepdim=True).clamp(min=1e-30) / levels, weight.amax(1).clamp(min=1e-30) / 127
    ones, columns = torch.ones_like(x), torch.ones_like(weight)
    error = step / 2 * (ones @ weight.t()) + (x @ columns.t()) * channel_step / 2 + x.shape[1] * step * channel_step / 4
    return 1.001 * error + 1e-6 * (x @ weight.t())


@pytest.mark.parametrize(("outer", "inner"), [(1, 1), (7, 33), (64, 64), (300, 130), (40, 1025)])
@pytest.mark.parametrize("rows", [1, 2, 17, 80])
def test_a_product_is_within_its_bound(kernel: Int8Kernel, outer: int, inner: int, rows: int) -> None:
    weight = torch.randn(outer, inner) * torch.logspace(-3, 3, outer)[:, None]
    x = torch.randn(rows, inner) * torch.logspace(-4, 4, rows)[:, None]
    found, exact = Int8Weight(weight, kernel).product(x), x.double() @ weight.double().t()
    assert bool(((found - exact).abs() <= bound(x, weight, kernel.levels)).all())


@pytest.mark.parametrize(("outer", "inner"), [(7, 33), (512, 128), (130, 1024)])
def test_a_row_alone_has_the_bits_it_has_in_a_batch(kernel: Int8Kernel, outer: int, inner: int) -> None:
    weight, x = Int8Weight(torch.randn(outer, inner), kernel), torch.randn(41, inner) * torch.logspace(-3, 3, 41)[:, None]
    together = weight.product(x)
    for first, last in ((0, 1), (3, 4), (3, 9), (7, 40), (40, 41)):
        assert torch.equal(weight.product(x[first:last]), together[first:last])


@pytest.mark.parametrize("inner", [2, 64, 1000, 2048])
def test_sums_of_the_largest_numbers_are_exact(kernel: Int8Kernel, inner: int) -> None:
    """On AVX2 two products are added in 16 bits: a larger range of activations would be cut off."""
    x = torch.full((2, inner), 1.0)
    x[1] = -1
    weight = torch.ones(16, inner)
    weight[1::2] = -1
    torch.testing.assert_close(Int8Weight(weight, kernel).product(x), x @ weight.t(), rtol=1e-6, atol=0)


def test_a_kernel_that_cuts_sums_off_at_16_bits_is_not_used(kernel: Int8Kernel, monkeypatch: pytest.MonkeyPatch) -> None:
    def saturating(levels: int, rows: Tensor, packed: tuple[Tensor, Tensor], bias: None) -> Tensor:
        integers, scales = packed
        pairs = (rows.round() + levels + 1)[:, None] * integers.float()  # (N, out, in), activations are unsigned
        sums = pairs.unflatten(2, (-1, 2)).sum(3).clamp(-(2**15), 2**15 - 1).sum(2)
        return (sums - (levels + 1) * integers.float().sum(1)) * scales

    def unpacked(integers: Tensor, scales: Tensor) -> tuple[Tensor, Tensor]:
        return integers, scales

    functions: dict[str, Callable[..., Any]] = {
        "pack": unpacked, "at 127": partial(saturating, 127), "at 63": partial(saturating, 63)
    }  # fmt: skip
    monkeypatch.setattr(int8, "load", functions.get)
    assert not int8.is_exact(replace(kernel, levels=127, pack="pack", multiply="at 127"))
    assert int8.is_exact(replace(kernel, levels=63, pack="pack", multiply="at 63"))


def test_zeros_infinities_and_nan_are_as_in_float32(kernel: Int8Kernel) -> None:
    x, weight = torch.randn(7, 40), torch.randn(9, 40)
    weight[:, :8] += 0.1 * weight[:, :8].sign()  # none is rounded to 0: infinity times 0 is NaN
    x[0], x[1, 5], x[2, 7], x[3, :2] = 0, torch.nan, torch.inf, torch.tensor([torch.inf, -torch.inf])
    x[4] *= 1e37
    x[5] = 1e-42
    kept = x.clone()
    found, exact = Int8Weight(weight, kernel).product(x), x @ weight.t()
    torch.testing.assert_close(x, kept, rtol=0, atol=0, equal_nan=True)
    torch.testing.assert_close(found[:4], exact[:4], rtol=0, atol=0, equal_nan=True)
    assert bool(found[1].isnan().all())
    assert bool(found[2].isinf().all())
    torch.testing.assert_close(found[4], exact[4], rtol=0, atol=float(bound(x[4:5], weight, kernel.levels).max()))
    assert float(found[5].abs().max()) < 1e-30
    assert torch.equal(found[6:], Int8Weight(weight, kernel).product(x[6:]))
    assert Int8Weight(weight, kernel).product(x[:0]).shape == (0, 9)


def test_a_channel_of_zeros_and_a_bias(kernel: Int8Kernel) -> None:
    linear = nn.Linear(40, 9)
    with torch.no_grad():
        linear.weight[3] = 0
    x = torch.randn(2, 3, 40)
    found = LowPrecisionLinear(linear, Int8Weight(linear.weight, kernel))(x)
    assert found.shape == (2, 3, 9)
    assert torch.equal(found[..., 3], linear.bias[3].expand(2, 3))
    assert bool(((found - linear(x)).abs().view(6, 9) <= bound(x.view(6, 40), linear.weight, kernel.levels)).all())


def test_weights_that_cannot_be_scaled_or_win_nothing_stay_float32() -> None:
    weight = torch.ones(512, 512)
    assert int8.is_finite(weight)
    assert int8.is_large(weight)
    assert not int8.is_large(weight, int8.HEAD)
    assert not int8.is_large(weight[:128, :128])
    assert not int8.is_large(torch.ones(8, 70_000))
    for value in (torch.nan, torch.inf, 1e31):
        wrong = weight.clone()
        wrong[3, 4] = value
        assert not int8.is_finite(wrong)


@pytest.mark.parametrize("bias", [False, True])
def test_the_largest_logits_are_those_of_float32(kernel: Int8Kernel, bias: bool) -> None:
    weight, x, added = torch.randn(9000, 32), torch.randn(3, 2, 32), torch.randn(9000) if bias else None
    found, exact = LowPrecisionHead(Int8Weight(weight, kernel)).logits(x, weight, added), nn.functional.linear(x, weight, added)
    best = exact.topk(4, 2).indices
    torch.testing.assert_close(found.gather(2, best), exact.gather(2, best))
    assert int(((found - exact).abs() < 1e-5).sum(2).min()) >= CANDIDATES
    assert not torch.equal(found, exact)
    one = LowPrecisionHead(Int8Weight(weight, kernel)).logits(x[1:2], weight, added)
    assert torch.equal(one, found[1:2])


@pytest.mark.parametrize("V", [5, 300, 4096, 9001])
def test_the_largest_are_found_in_groups(V: int) -> None:
    scores = torch.randn(4, V)
    scores[1, V - 1] = 9.0  # after the last whole group
    found = largest(scores, 16)
    assert torch.equal(scores.gather(1, found).sort(1).values, scores.topk(min(16, V), 1).values.sort(1).values)


@pytest.mark.slow
def test_a_sentence_is_found_in_a_batch_as_alone(everything: None) -> None:
    model = small()
    round_weights(model, "int8", KERNELS)
    assert sum(type(module) is LowPrecisionLinear for module in model.modules()) == 6 + 2 * 10
    finds_in_a_batch_as_alone(model)


def test_a_model_has_no_gradients_and_is_not_saved(everything: None, tmp_path) -> None:
    model = small()
    before = model(source=torch.tensor(SOURCES[:1]), target=torch.tensor([[1, 5]])).logits.detach()
    round_weights(model, "int8", KERNELS)
    after = model(source=torch.tensor(SOURCES[:1]), target=torch.tensor([[1, 5]])).logits
    assert not after.requires_grad
    assert 0 < float((after - before).abs().max()) < 0.1 * float(before.abs().max())
    with pytest.raises(tfkit.StoreError, match="TFK081 the model was loaded with int8 weights"):
        tfkit.save(model, tmp_path / "model")


def test_a_loaded_model_is_the_one_in_memory(everything: None, tmp_path) -> None:
    model = small()
    tfkit.save(model, tmp_path / "model")
    loaded = tfkit.load(tmp_path / "model", precision="int8").eval()
    round_weights(model, "int8", KERNELS)
    inputs = {"source": torch.tensor(SOURCES[:1]), "target": torch.tensor([[1, 5, 6]])}
    assert torch.equal(loaded(**inputs).logits, model(**inputs).logits)
    assert loaded.precision == "int8"
    assert tfkit.load(tmp_path / "model").precision == "float32"


def test_a_precision_that_cannot_be_computed_is_refused(tmp_path, monkeypatch: pytest.MonkeyPatch) -> None:
    model = small()
    tfkit.save(model, tmp_path / "model")
    with pytest.raises(tfkit.BuildError, match="TFK047 there is no precision 'int4'"):
        tfkit.load(tmp_path / "model", precision="int4")
    with pytest.raises(tfkit.BuildError, match="TFK047 int8 is for CPUs, and the device is cuda"):
        tfkit.load(tmp_path / "model", precision="int8", device="cuda")
    monkeypatch.setattr(precision, "fastest", lambda kernels: None)
    with pytest.raises(tfkit.BuildError, match="no int8 products"):
        tfkit.load(tmp_path / "model", precision="int8")


def test_int8_is_made_from_float32_alone(everything: None, tmp_path) -> None:
    tfkit.save(small().bfloat16(), tmp_path / "model")
    with pytest.raises(tfkit.BuildError, match="the weights are bfloat16"):
        tfkit.load(tmp_path / "model", precision="int8")


def test_the_command_line_knows_every_precision() -> None:
    assert options.PRECISIONS == precision.PRECISIONS
