"""The laws of every product in a lower precision: its bound, rows that do not depend on each other, the ends of float32."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..finding import Violation
from .bound import SLACK, Format, exact_product, product_bound

Product = Callable[[Tensor], Tensor]
Make = Callable[[Tensor, Tensor | None], Product]
SHAPES = ((1, 1, 1), (3, 7, 33), (1, 64, 64), (17, 40, 130), (80, 96, 256), (5, 16, 1025))
"""Rows, output channels, input features."""


@dataclass(frozen=True)
class ProductCase:
    """One product. `x` (N, in), `weight` (out, in), `bias` (out,) or None."""

    make: Make
    format: Format
    x: Tensor
    weight: Tensor
    bias: Tensor | None

    def run(self, x: Tensor | None = None) -> Tensor:
        """The product of the rows `x`, by default all. Raises Violation for another shape or dtype."""
        x = self.x if x is None else x
        product = self.make(self.weight.clone(), None if self.bias is None else self.bias.clone())(x.clone())
        wanted = (len(x), len(self.weight))
        if tuple(product.shape) != wanted or product.dtype != torch.float32:
            raise Violation("", f"returned {tuple(product.shape)} {product.dtype}, expected {wanted} torch.float32")
        return product

    @property
    def shape(self) -> str:
        return f"{len(self.x)} rows, weight {len(self.weight)} x {self.weight.shape[1]}"


@dataclass(frozen=True)
class ProductLaw:
    """`cases` are drawn from a seed; `evaluate` raises Violation, or returns the largest error over its bound."""

    name: str
    rule: str
    cases: Callable[[Make, Format, int], Iterator[ProductCase]]
    evaluate: Callable[[ProductCase], float | None]


def _drawn(make: Make, format: Format, seed: int) -> Iterator[ProductCase]:
    """Rows and channels of very different sizes: one scale for all of them rounds the small ones to zero."""
    generator = torch.Generator().manual_seed(seed)
    for number, (rows, outer, inner) in enumerate(SHAPES):
        spread = 10 ** torch.linspace(-3, 3, rows)[torch.randperm(rows, generator=generator)]
        channels = 10 ** torch.linspace(-2, 2, outer)[torch.randperm(outer, generator=generator)]
        x = torch.randn(rows, inner, generator=generator) * spread[:, None]
        weight = torch.randn(outer, inner, generator=generator) * channels[:, None]
        bias = torch.randn(outer, generator=generator) * channels if number % 2 else None
        yield ProductCase(make, format, x, weight, bias)


def _largest(make: Make, format: Format, seed: int) -> Iterator[ProductCase]:
    """Every product of a pair has the largest size: their sums need more than 16 bits. The last row has a sum of zero, after
    partial sums that need more than 8 bits."""
    generator = torch.Generator().manual_seed(seed)
    for inner in (2, 8, 64, 1000, 2048):
        x, weight = torch.ones(4, inner), torch.ones(18, inner)
        x[1], x[2, 1::2] = -1, -1
        x[3, : inner // 2] = torch.randint(2, (inner // 2,), generator=generator).float()
        x[3, inner // 2 : inner // 2 * 2] = -x[3, : inner // 2]
        weight[1::2] = -1
        weight[2::3, 1::2] = -1
        yield ProductCase(make, format, x * (1 + seed % 5), weight, None)


def _one_hot_rows(make: Make, format: Format, seed: int) -> Iterator[ProductCase]:
    for case in _drawn(make, format, seed):
        inner = case.weight.shape[1]
        yield replace(case, x=3 * torch.eye(inner)[: 2 * SHAPES[-2][0]], bias=None)


def _one_hot_channels(make: Make, format: Format, seed: int) -> Iterator[ProductCase]:
    for case in _drawn(make, format, seed):
        yield replace(case, weight=2 * torch.eye(case.x.shape[1])[:64], bias=None)


def _within(case: ProductCase, got: Tensor, want: Tensor, bound: Tensor, message: str) -> float:
    error = (got.double() - want).abs()
    share = torch.where(error == 0, 0.0, error / bound).nan_to_num(torch.inf, torch.inf)
    worst = float(share.max())
    if worst > 1:
        index = tuple(int(at) for at in torch.unravel_index(share.argmax(), share.shape))
        raise Violation(
            "", f"{message} ({case.shape})", tensor="y", index=index,
            got=float(got[index]), want=float(want[index]), bound=float(bound[index]),
        )  # fmt: skip
    return worst


def _bound(case: ProductCase) -> float:
    bound = product_bound(case.x, case.weight, case.bias, case.format)
    message = "the error is larger than the rounding of its row and its channel allows"
    return _within(case, case.run(), exact_product(case.x, case.weight, case.bias), bound, message)


def _exact(case: ProductCase) -> float:
    """Numbers of one size are exact, as integers times their scale and in bfloat16: only the result is rounded."""
    want = exact_product(case.x, case.weight, case.bias)
    size = case.x.double().abs() @ case.weight.double().abs().t()
    bound = case.format.sum_error(want, size, 0)
    return _within(case, case.run(), want, bound, "a sum of numbers of the largest size is cut off or rounded on the way")


def _weights(case: ProductCase) -> float:
    """A row of one number reads a column of the weight: nothing else is rounded."""
    want = exact_product(case.x, case.weight, None)
    moved = exact_product(case.x, case.format.weight_error(case.weight.double()).expand_as(case.weight), None)
    bound = (1 + SLACK) * moved + case.format.sum_error(want.abs() + moved, want.abs() + moved, 1)
    return _within(case, case.run(), want, bound, "a weight is not rounded to the nearest number of its channel")


def _activations(case: ProductCase) -> float:
    """A channel of one number reads a number of each row."""
    want = exact_product(case.x, case.weight, None)
    moved = exact_product(case.format.activation_error(case.x.double()).expand_as(case.x), case.weight, None)
    bound = (1 + SLACK) * moved + case.format.sum_error(want.abs() + moved, want.abs() + moved, 1)
    return _within(case, case.run(), want, bound, "an activation is not rounded to the nearest number of its row")


def _alone(case: ProductCase) -> None:
    together = case.run()
    for first in range(0, len(case.x), max(1, len(case.x) // 5)):
        for last in (first + 1, first + 3):
            if not torch.equal(case.run(case.x[first:last]), together[first:last]):
                raise Violation("", f"rows {first}..{min(last, len(case.x)) - 1} have other bits alone ({case.shape})")


def _unchanged(case: ProductCase) -> None:
    x, product = case.x.clone(), case.make(case.weight.clone(), case.bias)
    first = product(x)
    if not torch.equal(x, case.x):
        raise Violation("", f"the product overwrites its input ({case.shape})")
    if not torch.equal(product(x), first):
        raise Violation("", f"a second call gives another result ({case.shape})")


def _ends(case: ProductCase) -> None:
    """Zeros, NaN, infinities and huge numbers, each in one row, between rows that must not feel them."""
    inner = case.weight.shape[1]
    rows = case.x[:1].repeat(5, 1)
    rows[1] = 0
    rows[2, inner // 2] = torch.nan
    rows[3, 0] = torch.inf
    want = torch.nn.functional.linear(rows, case.weight, case.bias)
    product = case.run(rows)
    zero = torch.zeros(len(case.weight)) if case.bias is None else case.bias
    if not torch.equal(product[1], zero):
        raise Violation("", f"a row of zeros does not give the bias, or zeros without one ({case.shape})")
    if not bool(product[2].isnan().all()):
        raise Violation("", f"a row with NaN gives numbers ({case.shape})")
    # A small weight may be rounded to zero, and zero times infinity is NaN.
    zeros = case.weight[:, 0].abs() <= 2 * case.format.weight_error(case.weight.double()).expand_as(case.weight)[:, 0]
    if not bool(((product[3] == want[3]) | (product[3].isnan() & (want[3].isnan() | zeros))).all()):
        raise Violation("", f"a row with infinity does not give what float32 gives ({case.shape})")
    if not torch.equal(product[0], product[4]) or not bool(product[0].isfinite().all()):
        raise Violation("", f"rows beside NaN and infinity feel them ({case.shape})")


LAWS = (
    ProductLaw("error bound", "errors are within what rounding allows for their row and channel", _drawn, _bound),
    ProductLaw("weights", "a weight is rounded to the nearest number of its channel", _one_hot_rows, _weights),
    ProductLaw("activations", "an activation is rounded to the nearest number of its row", _one_hot_channels, _activations),
    ProductLaw("largest sums", "sums of numbers of the largest size are exact until the result is rounded", _largest, _exact),
    ProductLaw("row alone", "a row has the same bits alone and in a batch", _drawn, _alone),
    ProductLaw("inputs", "inputs are not overwritten, and no call changes the next", _drawn, _unchanged),
    ProductLaw("ends", "zeros, NaN and infinities behave as in float32, and other rows do not feel them", _drawn, _ends),
)
