"""What every activation owes a feed-forward layer: one number in, one number out, whatever stands beside it."""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor

from tfkit.slots.activation import CLAIMS

from .activation_closed import LAWS as FORMS
from .activation_ffn import LAWS as FEED_FORWARD
from .declared import check_claims, check_unwritten
from .example import SINGLE, LawExample
from .law import Law, PartUnderTest, Structure, always, claims
from .rounding import STEP

SIZES = (1, 2, 3, 7, 8, 9, 15, 16, 17, 31, 33, 64, 130)


def _draw(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    return {"count": random.choice(SIZES), "scale": random.choice((0, 0, 1, 2, 3, -6))}


def _numbers(trial: LawExample, *shape: int) -> Tensor:
    power = float(trial.at["scale"])
    return (trial.normal(*shape, dtype=torch.float64) * float(2.0**power)).to(trial.dtype)


def _apply(trial: LawExample, x: Tensor) -> Tensor:
    return trial.alike("output", trial.subject.make(x, trial.options), x.shape, x.dtype)


def _declaration(trial: LawExample) -> None:
    check_claims(trial, CLAIMS)


def _outputs(trial: LawExample) -> None:
    count = trial.at["count"]
    for shape in ((count,), (2, count), (2, 3, count)):
        x = _numbers(trial, *shape)
        kept = x.clone()
        first = _apply(trial, x)
        trial.finite("output", first)
        check_unwritten(trial, [kept], [x])
        _apply(trial, _numbers(trial, 5))
        trial.equal("the same call a second time, after another one, gives something else", _apply(trial, kept), first)


def _slope(trial: LawExample, x: Tensor) -> tuple[Tensor, Tensor]:
    """f(x) and f'(x) in float64."""
    leaf = x.detach().double().requires_grad_()
    output = trial.subject.make(leaf, trial.options)
    if not output.requires_grad:
        raise trial.broken("the output carries no gradient")
    return output.detach(), torch.autograd.grad(output.sum(), leaf)[0]


def _size(x: Tensor, value: Tensor, slope: Tensor) -> Tensor:
    """What one rounding is a share of: the value, the argument through the slope, and the argument itself, for functions that
    take a small difference of large numbers (1 + erf) before they multiply."""
    return value.abs() + (x.double() * slope).abs() + x.double().abs().clamp(max=8.0)


def _elementwise(trial: LawExample) -> float:
    """A number's neighbours change no bit of its value; its place may change the way it is computed, but not by more than
    roundings."""
    count = max(2, trial.at["count"])
    x = _numbers(trial, 2, count)
    one = _apply(trial, x)
    other = _numbers(trial, 2, count)
    place = int(trial.generator.initial_seed() % count)
    other[0, place] = x[0, place]
    trial.equal("the value at one place depends on the numbers at others", _apply(trial, other)[0, place], one[0, place])
    turn = torch.randperm(count, generator=trial.generator)
    bound = 2 * (3 * trial.unit + 16 * SINGLE) * _size(x, *_slope(trial, x))[:, turn] + trial.tiny
    said = "the value of a number depends on its place"
    return max(
        trial.within(said, _apply(trial, x[:, turn]), one[:, turn], bound),
        trial.within(said, _apply(trial, x.t()).t()[:, turn], one[:, turn], bound),
    )


def _dtypes(trial: LawExample) -> float:
    x = _numbers(trial, 3, trial.at["count"])
    value, slope = _slope(trial, x)
    bound = (3 * trial.unit + 16 * SINGLE) * _size(x, value, slope) + trial.tiny
    said = f"the value in {trial.dtype} is farther from its own float64 run than three roundings"
    return trial.within(said, _apply(trial, x), value, bound)


def _rounds_once(trial: LawExample) -> float:
    x = _numbers(trial, 3, trial.at["count"])
    value, slope = _slope(trial, x)
    inside = 16 * SINGLE * _size(x, value, slope)
    bound = 1.01 * trial.unit * (value.abs() + inside) + inside + trial.tiny
    return trial.within(f"the value in {trial.dtype} is rounded more than once", _apply(trial, x), value, bound)


def _slopes_hold(trial: LawExample) -> float:
    x = _numbers(trial, trial.at["count"])
    value, slope = _slope(trial, x)
    with torch.no_grad():
        ahead, behind = (trial.subject.make(x + step, trial.options) for step in (STEP, -STEP))
    right, left = (ahead - value) / STEP, (value - behind) / STEP
    bound = (right - left).abs() + 4 * SINGLE / STEP * (value.abs() + x.abs() + 1)
    return trial.within("the gradient is not the slope that differences show", slope, (right + left) / 2, bound, "gradient")


def _extremes(trial: LawExample) -> None:
    """0, and numbers up to the largest of the dtype: no NaN, in values and in slopes; infinite only where the dtype ends."""
    largest = torch.finfo(trial.dtype).max
    x = torch.tensor([0.0, -0.0, 1.0, 30.0, 1e4, largest / 4, largest], dtype=trial.dtype, device=trial.device)
    for sign in (1, -1):
        leaf = (sign * x).requires_grad_()
        output = _apply(trial, leaf)
        if bool(output.isnan().any()):
            place = int(output.isnan().nonzero()[0])
            raise trial.broken(f"f({float(leaf[place]):g}) is NaN in {trial.dtype}", tensor="output", index=(place,))
        if not output.requires_grad:
            raise trial.broken("the output carries no gradient")
        gradient = torch.autograd.grad(output[:4].sum(), leaf)[0][:4]
        trial.finite("a slope between -30 and 30", gradient)
        modest = output.detach()[:4]
        trial.finite("a value between -30 and 30", modest)


def _closes(trial: LawExample) -> None:
    """f(-x) for growing x: at most as large as the last bits of x, and no NaN."""
    x = torch.tensor([-40.0, -100.0, -1000.0, -30000.0], dtype=trial.dtype, device=trial.device)
    y = _apply(trial, x)
    trial.within("it does not go to 0 as x goes to minus infinity", y, torch.zeros_like(y), 16 * SINGLE * 40)


def _monotone(trial: LawExample) -> None:
    x = torch.linspace(-12, 12, 2001, dtype=torch.float64, device=trial.device).to(trial.dtype)
    y = _apply(trial, x).double()
    falls = y[:-1] - y[1:] > 2 * (trial.unit + 16 * SINGLE) * y[1:].abs()
    if bool(falls.any()):
        place = int(falls.nonzero()[0])
        (left, right), (high, low) = x[place : place + 2].tolist(), y[place : place + 2].tolist()
        raise trial.broken(f"it falls from f({left:g}) = {high:g} to f({right:g}) = {low:g}")


SMALLER = {"count": 1, "scale": 0}
FLAT = ("float32",)
LAWS = (
    Law("declaration", "the claims are known ones", always, _draw, _declaration, dtypes=FLAT),
    Law("outputs", "shape and dtype stay; finite; nothing written; no state between calls", always, _draw, _outputs, SMALLER),
    Law(
        "elementwise",
        "the value at a place depends on the number there and on nothing else",
        always,
        _draw,
        _elementwise,
        SMALLER,
    ),
    Law("dtypes", "every dtype is within three roundings of its own float64 run", always, _draw, _dtypes, SMALLER),
    Law(
        "rounds_once",
        "half dtypes are computed in float32 and rounded once",
        claims("rounds_once"),
        _draw,
        _rounds_once,
        SMALLER,
    ),
    Law(
        "slopes_hold",
        "R39: gradients are the slopes that differences show, in float64",
        always,
        _draw,
        _slopes_hold,
        SMALLER,
        ("float64",),
    ),
    Law("extremes", "no NaN up to the largest numbers of the dtype, finite slopes", always, _draw, _extremes),
    Law("closes", "f(x) goes to 0 as x goes to minus infinity", claims("closes"), _draw, _closes),
    Law("monotone", "f never falls", claims("monotone"), _draw, _monotone),
    *FORMS,
    *FEED_FORWARD,
)
