"""Laws of products in float32, int8 and bfloat16: installed kernels pass, and the law that is about a mistake finds it."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

import tfkit
from tfkit import InputError
from tfkit.cpu import bfloat16, float32, int8
from tfkit.cpu.low_precision import LowPrecisionLinear
from tfkit_conformance import check_product

LEVELS = 127


class Right:
    """Exact integers in float64, a scale for each row and each channel."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.float32, self.bias = weight, bias
        self.scale = self.channel_scale(weight).clamp(min=1e-30) / LEVELS  # (out, 1)
        self.integers = (weight / self.scale).round()

    def channel_scale(self, weight: Tensor) -> Tensor:
        return weight.abs().amax(1, keepdim=True)

    def row_scale(self, x: Tensor) -> Tensor:
        return x.abs().amax(1, keepdim=True)

    def sums(self, x: Tensor) -> Tensor:
        return (x.double() @ self.integers.double().t()).float()

    def __call__(self, x: Tensor) -> Tensor:
        scale = self.row_scale(x).clamp(min=1e-30) / LEVELS
        y = self.rescaled(self.sums((x / scale).round().nan_to_num(1, 1, 1)), scale)
        y = y if self.bias is None else y + self.bias
        return self.ends(x, y)

    def rescaled(self, sums: Tensor, scale: Tensor) -> Tensor:
        return sums * scale * self.scale[:, 0]

    def ends(self, x: Tensor, y: Tensor) -> Tensor:
        finite = x.isfinite().all(1, keepdim=True)
        return torch.where(finite, y, torch.nn.functional.linear(x, self.float32, self.bias))


class BatchScale(Right):
    def row_scale(self, x):
        return x.abs().max().expand(len(x), 1)


class MatrixScale(Right):
    def channel_scale(self, weight):
        return weight.abs().max().expand(len(weight), 1)


class RowScaleDropped(Right):
    def rescaled(self, sums, scale):
        return sums * self.scale[:, 0]


class ChannelScaleDropped(Right):
    def rescaled(self, sums, scale):
        return sums * scale


class BiasForgotten(Right):
    def __init__(self, weight, bias):
        super().__init__(weight, None)


class BiasScaled(Right):
    def rescaled(self, sums, scale):
        return sums * scale * self.scale[:, 0] + (0 if self.bias is None else self.bias * (scale - 1))


class CutOffAt16Bits(Right):
    """Pairs of unsigned and signed bytes added in 16 bits, as AVX2 does."""

    def sums(self, x):
        pairs = (x[:, None] + 128) * self.integers
        if pairs.shape[2] % 2:
            pairs = torch.nn.functional.pad(pairs, (0, 1))
        return pairs.unflatten(2, (-1, 2)).sum(3).clamp(-(2**15), 2**15 - 1).sum(2) - 128 * self.integers.sum(1)


class CutOffAt24Bits(Right):
    def sums(self, x):
        return super().sums(x).clamp(-(2**23), 2**23)


class Truncated(Right):
    """Rounds towards zero."""

    def __init__(self, weight, bias):
        super().__init__(weight, bias)
        self.integers = (weight / self.scale).trunc()


class TruncatedRows(Right):
    """Rounds activations downwards."""

    def sums(self, x):
        return super().sums((x - 0.4 * (x != 0) * (x.abs() < LEVELS)).floor())


class OneOffZeroPoint(Right):
    def sums(self, x):
        return super().sums(x) + self.integers.sum(1)


class FewerLevels(Right):
    """Rounds activations to 15 levels."""

    def sums(self, x):
        return super().sums((x / 8).round() * 8)


class NanBecomesANumber(Right):
    def ends(self, x, y):
        return y.nan_to_num(0.0)


class InfinityBecomesNan(Right):
    def ends(self, x, y):
        return torch.where(x.isfinite().all(1, keepdim=True), y, torch.nan)


class NanSpreads(Right):
    def ends(self, x, y):
        y = super().ends(x, y)
        return y + 0 * x.sum()


class Overwrites(Right):
    def __call__(self, x):
        y = super().__call__(x)
        x.mul_(2)
        return y


class KeepsTheFirstScale(Right):
    first = None

    def row_scale(self, x):
        own = super().row_scale(x)
        self.first = own if self.first is None else own.maximum(self.first.max())
        return self.first


class LastRowTwice(Right):
    """The tail of a batch is computed with the scale of the row before."""

    def row_scale(self, x):
        own = super().row_scale(x)
        return own if len(own) < 2 else torch.cat([own[:-1], own[-2:-1].maximum(own[-1:])])


WRONG = {
    BatchScale: "error bound", MatrixScale: "error bound", RowScaleDropped: "error bound", ChannelScaleDropped: "error bound",
    BiasForgotten: "error bound", BiasScaled: "error bound", CutOffAt16Bits: "largest sums",
    CutOffAt24Bits: "largest sums", Truncated: "weights", TruncatedRows: "activations", OneOffZeroPoint: "largest sums",
    FewerLevels: "activations", NanBecomesANumber: "ends", InfinityBecomesNan: "ends", NanSpreads: "ends",
    Overwrites: "inputs", KeepsTheFirstScale: "inputs", LastRowTwice: "row alone",
}  # fmt: skip


@pytest.mark.parametrize("kernel", tfkit.load_catalogue().entries("int8_kernel"), ids=lambda kernel: kernel.name)
def test_the_installed_kernels_pass(kernel):
    if not int8.is_supported(kernel):
        pytest.skip(f"not run: this processor has not {' and '.join(kernel.needs)}")
    report = check_product(kernel)
    report.raise_for_failures()
    assert (report.name, report.verdict) == (kernel.name, "CONFORMANT")
    worst = {check.name: check.worst for check in report.checks}
    assert 0.01 < worst["error bound"] <= 1


def test_exact_integers_pass():
    check_product(Right).raise_for_failures()


@pytest.mark.parametrize(("wrong", "law"), WRONG.items(), ids=lambda value: getattr(value, "__name__", value))
def test_a_mistake_is_found_by_the_law_that_is_about_it(wrong, law):
    [found] = check_product(wrong, checks=[law]).findings
    assert found.check == law
    assert check_product(wrong).verdict == "NONCONFORMANT"


def test_a_product_that_has_fewer_levels_than_it_says_is_found():
    assert check_product(Right, levels=63).verdict == "CONFORMANT"
    [found] = check_product(FewerLevels, checks=["activations"]).findings
    assert abs(found.got - found.want) > found.bound > 0


class RightBfloat16:
    """Sums in float32 of numbers that were rounded to bfloat16; the result is rounded once."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.weight, self.bias = self.rounded(weight), bias

    def rounded(self, numbers: Tensor) -> Tensor:
        return numbers.bfloat16().float()

    def sums(self, x: Tensor) -> Tensor:
        return x @ self.weight.t()

    def __call__(self, x: Tensor) -> Tensor:
        y = torch.cat([self.sums(self.rounded(row)).bfloat16().float() for row in x.split(1)])
        return y if self.bias is None else y + self.bias


class TruncatedToBfloat16(RightBfloat16):
    """The last 16 bits of float32 are cut off."""

    def rounded(self, numbers):
        return (numbers.contiguous().view(torch.int32) >> 16 << 16).view(torch.float32)


class SumsInBfloat16(RightBfloat16):
    def sums(self, x):
        total = torch.zeros(len(x), len(self.weight))
        for first in range(0, x.shape[1], 16):
            total = (total + x[:, first : first + 16] @ self.weight[:, first : first + 16].t()).bfloat16().float()
        return total


class Float8Weight(RightBfloat16):
    def __init__(self, weight, bias):
        super().__init__(weight.clamp(-400, 400).to(torch.float8_e4m3fn).float(), bias)


class Float8Activations(RightBfloat16):
    def sums(self, x):
        return super().sums(x.to(torch.float8_e5m2).float())


class NarrowRange(RightBfloat16):
    """float16 has more bits, but a smaller range."""

    def rounded(self, numbers):
        return (numbers * 1e-4).half().float() * 1e4


class BatchDecides(RightBfloat16):
    """The halves of a sum are rounded one by one in a batch, and together in a row alone."""

    def __call__(self, x):
        if len(x) < 2:
            return super().__call__(x)
        half = x.shape[1] // 2 or 1
        x, w = self.rounded(x), self.weight
        parts = [(x[:, at] @ w[:, at].t()).bfloat16().float() for at in (slice(half), slice(half, None))]
        return sum(parts).bfloat16().float() + (0 if self.bias is None else self.bias)


WRONG_BFLOAT16 = {
    TruncatedToBfloat16: "weights", SumsInBfloat16: "largest sums", Float8Weight: "weights", Float8Activations: "activations",
    NarrowRange: "weights", BatchDecides: "row alone",
}  # fmt: skip


@pytest.mark.skipif(bfloat16.bfloat16_kernel_here() is None, reason="not run: this processor has no bfloat16 products")
def test_bfloat16_of_tfkit_passes():
    def make(weight, bias):
        linear = torch.nn.Linear(weight.shape[1], weight.shape[0], bias is not None)
        linear.weight.data = weight
        if bias is not None:
            linear.bias.data = bias
        return LowPrecisionLinear(linear, bfloat16.Bfloat16Weight(weight))

    report = check_product(make, precision="bfloat16")
    report.raise_for_failures()
    assert 0.01 < {check.name: check.worst for check in report.checks}["error bound"] <= 1


def test_bfloat16_in_torch_passes():
    check_product(RightBfloat16, precision="bfloat16").raise_for_failures()


@pytest.mark.parametrize(("wrong", "law"), WRONG_BFLOAT16.items(), ids=lambda value: getattr(value, "__name__", value))
def test_a_mistake_in_bfloat16_is_found_by_the_law_that_is_about_it(wrong, law):
    [found] = check_product(wrong, precision="bfloat16", checks=[law]).findings
    assert (found.check, found.rule) == (law, "bfloat16")
    assert check_product(wrong, precision="bfloat16").verdict == "NONCONFORMANT"


def test_int8_is_no_bfloat16():
    assert check_product(Right, precision="bfloat16").verdict == "NONCONFORMANT"


@pytest.mark.parametrize("kernel", tfkit.load_catalogue().entries("float32_kernel"), ids=lambda kernel: kernel.name)
def test_the_installed_float32_kernels_pass(kernel):
    if not float32.is_supported(kernel):
        pytest.skip(f"not run: this processor has not {' and '.join(kernel.needs)}")
    report = check_product(kernel)
    report.raise_for_failures()
    assert (report.name, report.verdict) == (kernel.name, "CONFORMANT")
    assert 0.01 < {check.name: check.worst for check in report.checks}["error bound"] <= 1


class InOrder:
    """Sums in the order of the features, so that rows do not depend on each other."""

    def __init__(self, weight, bias):
        self.weight, self.bias = weight, bias

    def __call__(self, x):
        y = torch.zeros(len(x), len(self.weight)) if self.bias is None else self.bias.expand(len(x), -1)
        for k in range(x.shape[1]):
            y = y + x[:, k, None] * self.weight[:, k]
        return y


class LastFeatureForgotten(InOrder):
    def __call__(self, x):
        return InOrder(self.weight[:, :-1], self.bias)(x[:, :-1]) if x.shape[1] > 2 else super().__call__(x)


class WeightsInBfloat16(InOrder):
    def __init__(self, weight, bias):
        super().__init__(weight.bfloat16().float(), bias)


class RowsInBfloat16(InOrder):
    def __call__(self, x):
        return super().__call__(x.bfloat16().float())


class AnotherOrderAlone(InOrder):
    def __call__(self, x):
        return InOrder(self.weight.flip(1), self.bias)(x.flip(1)) if len(x) == 1 else super().__call__(x)


class NanIsZero(InOrder):
    def __call__(self, x):
        return super().__call__(x.nan_to_num(0.0, torch.inf, -torch.inf))


WRONG_FLOAT32 = {
    LastFeatureForgotten: "error bound", WeightsInBfloat16: "weights", RowsInBfloat16: "activations",
    AnotherOrderAlone: "row alone", NanIsZero: "ends",
}  # fmt: skip


@pytest.mark.parametrize(("wrong", "law"), WRONG_FLOAT32.items(), ids=lambda value: getattr(value, "__name__", value))
def test_a_mistake_in_float32_is_found_by_the_law_that_is_about_it(wrong, law):
    check_product(InOrder, precision="float32", checks=[law]).raise_for_failures()
    [found] = check_product(wrong, precision="float32", checks=[law]).findings
    assert (found.check, found.rule) == (law, "float32")


class Raises(Right):
    def __call__(self, x):
        raise IndexError("channel 3")


class AnotherShape(Right):
    def __call__(self, x):
        return super().__call__(x).t()


def test_what_it_raises_and_another_shape_are_reported():
    assert "raised IndexError: channel 3" in check_product(Raises).findings[0].message
    assert "expected (3, 7) torch.float32" in check_product(AnotherShape).findings[0].message


def test_wrong_arguments_are_errors():
    with pytest.raises(InputError, match="no law `bound`"):
        check_product(Right, checks=["bound"])
    with pytest.raises(InputError, match="levels is 255"):
        check_product(Right, levels=255)
    with pytest.raises(InputError, match="no precision 'float8' here"):
        check_product(Right, precision="float8")
