"""Laws of every activation: elementwise, finite, in every dtype, with the properties that it claims."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from .activation_ffn import LAWS as FEED_FORWARD
from .declared import check_claims, check_unwritten
from .example import SINGLE, LawExample
from .law import Law, always, claims
from .part import PartUnderTest, Structure
from .rounding import STEP

SIZES = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 130)


def _draw(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    return {"count": random.choice(SIZES), "scale": random.choice((0, 0, 1, 2, 3, -6))}


def _numbers(example: LawExample, *shape: int) -> Tensor:
    power = float(example.at["scale"])
    return (example.normal(*shape, dtype=torch.float64) * float(2.0**power)).to(example.dtype)


def _apply(example: LawExample, x: Tensor) -> Tensor:
    return example.alike("output", example.subject.make(x, example.options), x.shape, x.dtype)


def _outputs(example: LawExample) -> None:
    count = example.at["count"]
    for shape in ((count,), (2, count), (2, 3, count)):
        x = _numbers(example, *shape)
        kept = x.clone()
        first = _apply(example, x)
        example.finite("output", first)
        check_unwritten(example, [kept], [x])
        _apply(example, _numbers(example, 5))
        example.equal("a second call, after another one, gives a different result", _apply(example, kept), first)


def _slope(example: LawExample, x: Tensor) -> tuple[Tensor, Tensor]:
    """f(x) and f'(x) in float64."""
    leaf = x.detach().double().requires_grad_()
    output = example.subject.make(leaf, example.options)
    if not output.requires_grad:
        raise example.broken("the output carries no gradient")
    return output.detach(), torch.autograd.grad(output.sum(), leaf)[0]


def _size(x: Tensor, value: Tensor, slope: Tensor) -> Tensor:
    """What one rounding is a share of: the value, the argument through the slope, and the argument itself, for functions that
    take a small difference of large numbers (1 + erf) before they multiply."""
    return value.abs() + (x.double() * slope).abs() + x.double().abs().clamp(max=8.0)


def _elementwise(example: LawExample) -> float:
    """A number's neighbours change no bit of its value; its place may change the way it is computed, but not by more than
    roundings."""
    count = max(2, example.at["count"])
    x = _numbers(example, 2, count)
    one = _apply(example, x)
    other = _numbers(example, 2, count)
    place = int(example.generator.initial_seed() % count)
    other[0, place] = x[0, place]
    example.equal("the value at one place depends on the elements at others", _apply(example, other)[0, place], one[0, place])
    turn = torch.randperm(count, generator=example.generator)
    bound = 2 * (3 * example.unit + 16 * SINGLE) * _size(x, *_slope(example, x))[:, turn] + example.tiny
    said = "the value of an element depends on its place"
    return max(
        example.within(said, _apply(example, x[:, turn]), one[:, turn], bound),
        example.within(said, _apply(example, x.t()).t()[:, turn], one[:, turn], bound),
    )


def _dtypes(example: LawExample) -> float:
    x = _numbers(example, 3, example.at["count"])
    value, slope = _slope(example, x)
    bound = (3 * example.unit + 16 * SINGLE) * _size(x, value, slope) + example.tiny
    said = f"the value in {example.dtype} is farther from its own float64 run than three roundings"
    return example.within(said, _apply(example, x), value, bound)


def _rounds_once(example: LawExample) -> float:
    x = _numbers(example, 3, example.at["count"])
    value, slope = _slope(example, x)
    inside = 16 * SINGLE * _size(x, value, slope)
    bound = 1.01 * example.unit * (value.abs() + inside) + inside + example.tiny
    return example.within(f"the value in {example.dtype} is rounded more than once", _apply(example, x), value, bound)


def _slopes_hold(example: LawExample) -> float:
    x = _numbers(example, example.at["count"])
    value, slope = _slope(example, x)
    with torch.no_grad():
        ahead, behind = (example.subject.make(x + step, example.options) for step in (STEP, -STEP))
    right, left = (ahead - value) / STEP, (value - behind) / STEP
    bound = (right - left).abs() + 4 * SINGLE / STEP * (value.abs() + x.abs() + 1)
    return example.within("the gradient does not agree with finite differences", slope, (right + left) / 2, bound, "gradient")


def _extremes(example: LawExample) -> None:
    """0, and numbers up to the largest of the dtype: no NaN, in values and in slopes; infinite only where the dtype ends."""
    largest = torch.finfo(example.dtype).max
    x = torch.tensor([0.0, -0.0, 1.0, 30.0, 1e4, largest / 4, largest], dtype=example.dtype, device=example.device)
    for sign in (1, -1):
        leaf = (sign * x).requires_grad_()
        output = _apply(example, leaf)
        if bool(output.isnan().any()):
            place = int(output.isnan().nonzero()[0])
            raise example.broken(f"f({float(leaf[place]):g}) is NaN in {example.dtype}", tensor="output", index=(place,))
        if not output.requires_grad:
            raise example.broken("the output carries no gradient")
        gradient = torch.autograd.grad(output[:4].sum(), leaf)[0][:4]
        example.finite("a slope between -30 and 30", gradient)
        modest = output.detach()[:4]
        example.finite("a value between -30 and 30", modest)


def _closes(example: LawExample) -> None:
    """f(-x) for growing x: at most as large as the last bits of x, and no NaN."""
    x = torch.tensor([-40.0, -100.0, -1000.0, -30000.0], dtype=example.dtype, device=example.device)
    y = _apply(example, x)
    example.within("it does not go to 0 as x goes to minus infinity", y, torch.zeros_like(y), 16 * SINGLE * 40)


def _monotone(example: LawExample) -> None:
    x = torch.linspace(-12, 12, 2001, dtype=torch.float64, device=example.device).to(example.dtype)
    y = _apply(example, x).double()
    falls = y[:-1] - y[1:] > 2 * (example.unit + 16 * SINGLE) * y[1:].abs()
    if bool(falls.any()):
        place = int(falls.nonzero()[0])
        (left, right), (high, low) = x[place : place + 2].tolist(), y[place : place + 2].tolist()
        raise example.broken(f"f decreases from f({left:g}) = {high:g} to f({right:g}) = {low:g}")


SMALLER = {"count": 1, "scale": 0}
FLAT = ("float32",)
LAWS = (
    Law("declaration", "`claims` and `same_as` name known properties and parts", always, _draw, check_claims, dtypes=FLAT),
    Law("outputs", "same shape and dtype; finite; inputs unchanged; no state between calls", always, _draw, _outputs, SMALLER),
    Law("elementwise", "each output element depends on the input element at its place only", always, _draw, _elementwise,
        SMALLER),
    Law("dtypes", "every dtype is within three roundings of its own float64 run", always, _draw, _dtypes, SMALLER),
    Law("rounds_once", "half dtypes are computed in float32 and rounded once", claims("rounds_once"), _draw, _rounds_once,
        SMALLER),
    Law("slopes_hold", "R39: gradients agree with finite differences, in float64", always, _draw, _slopes_hold, SMALLER,
        ("float64",)),
    Law("extremes", "no NaN up to the largest numbers of the dtype, finite slopes", always, _draw, _extremes),
    Law("closes", "f(x) goes to 0 as x goes to minus infinity", claims("closes"), _draw, _closes),
    Law("monotone", "f is monotone", claims("monotone"), _draw, _monotone),
    *FEED_FORWARD,
)  # fmt: skip
