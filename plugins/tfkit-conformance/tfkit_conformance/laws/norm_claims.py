"""Laws of the properties that a norm claims. With eps added to a mean square s, norm(a x) differs from norm(x) by a relative

    |1 - sqrt((s + eps) / (s + eps / a^2))|  <=  eps / (2 s)           for a >= 1

so the laws are evaluated where s is 1 or more and the eps of the options is known; one that is not known counts as 1e-3.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from tfkit.plugin.model_parts import InitContext

from ..attention.bound import gamma
from .example import SINGLE, LawExample
from .law import Law, claims
from .part import PartUnderTest, Structure

UNKNOWN_EPS = 1e-3


def _draw(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    return {
        "width": random.choice((4, 7, 16, 33, 128)), "tokens": random.choice((1, 2, 4)),
        "power": random.choice((1, 2, 4, 6)), "shift": random.choice((1, 2, 8)),
    }  # fmt: skip


def _spread(example: LawExample) -> Tensor:
    """Vectors of mean 0 and mean square 1 or more, in float64."""
    at = example.at
    x = example.normal(at["tokens"], at["width"], dtype=torch.float64)
    x = x - x.mean(-1, keepdim=True)
    x = x / x.square().mean(-1, keepdim=True).sqrt()
    return 2.0 * x


def _eps(example: LawExample) -> float:
    found = getattr(example.options, "eps", UNKNOWN_EPS)
    return float(found) if isinstance(found, (int, float)) else UNKNOWN_EPS


def _first(example: LawExample) -> nn.Module:
    """The norm with weights as an untrained model has them."""
    width = example.at["width"]
    module = example.built(width)
    entry = example.subject.catalogue.find("init", "xavier")
    for parameter in example.entry.parameters(example.options, width):
        drawn = entry.draw(entry.options(), parameter, InitContext(width, 1, 0))
        with torch.no_grad():
            module.get_parameter(parameter.name).fill_(drawn.centre)
    return module


def _sizes(module: nn.Module, output: Tensor) -> Tensor:
    """The largest number of each row, with those of the weights: what a rounding is a share of."""
    weights = max((float(p.detach().abs().max()) for p in module.parameters()), default=1.0)
    return output.detach().double().abs().amax(-1, keepdim=True) + weights


def _scale(example: LawExample) -> float:
    module, x = example.built(example.at["width"]), _spread(example).to(example.dtype)
    factor = 2.0 ** example.at["power"]
    one, other = module(x), module(x * factor)
    share = _eps(example) / (2 * float(x.double().square().mean(-1).min()))
    bound = (2 * (3 * example.unit + gamma(example.at["width"] + 16, SINGLE)) + share) * _sizes(module, one) + example.tiny
    return example.within(f"the norm of {factor:g} x is not that of x", other, one, bound)


def _shift(example: LawExample) -> float:
    """The sum is exact: numbers are multiples of 1/8, so that no rounding of the input hides or feigns anything."""
    module, at = example.built(example.at["width"]), example.at
    x = (_spread(example) * 8).round() / 8
    moved = x + at["shift"]
    exact = torch.equal(moved.to(example.dtype).double(), moved) and torch.equal(x.to(example.dtype).double(), x)
    if not exact:
        x = x.round()
        moved = x + at["shift"]
    one, other = module(x.to(example.dtype)), module(moved.to(example.dtype))
    deviation = x.var(-1, unbiased=False, keepdim=True).sqrt().clamp(min=0.1)
    grown = (x.abs().amax(-1, keepdim=True) + at["shift"]) / deviation
    bound = (6 * example.unit + 2 * gamma(at["width"] + 16, SINGLE) * (1 + grown) ** 2) * _sizes(module, one) + example.tiny
    return example.within(f"the norm of x + {at['shift']} is not that of x", other, one, bound)


def _mean(example: LawExample) -> float:
    module, x = _first(example), (_spread(example) + example.at["shift"]).to(example.dtype)
    y = module(x).double()
    size = y.abs().amax(-1) * (1 + x.double().abs().amax(-1))
    bound = (2 * example.unit + 2 * gamma(example.at["width"] + 16, SINGLE)) * size + example.tiny
    return example.within("the mean of an output vector is not 0", y.mean(-1), torch.zeros_like(y.mean(-1)), bound)


def _rms(example: LawExample) -> float:
    module, x = _first(example), (_spread(example) * 2.0 ** example.at["power"]).to(example.dtype)
    y = module(x).double()
    share = _eps(example) / (2 * float(x.double().square().mean(-1).min()))
    bound = torch.full_like(y.mean(-1), 1.01 * share + 3 * example.unit + 2 * gamma(example.at["width"] + 16, SINGLE))
    got = y.square().mean(-1).sqrt()
    return example.within("the root mean square of an output vector is not 1", got, torch.ones_like(got), bound)


def _identity(example: LawExample) -> None:
    module, x = example.built(example.at["width"]), _spread(example).to(example.dtype)
    example.equal("y is not x", module(x), x)


SMALLER = {"tokens": 1, "width": 4, "power": 1, "shift": 1}
LAWS = (
    Law("scale_invariant", "R36: norm(a x) = norm(x), up to the effect of eps", claims("scale_invariant"), _draw, _scale,
        SMALLER),
    Law("shift_invariant", "R36: norm(x + c) = norm(x)", claims("shift_invariant"), _draw, _shift, SMALLER),
    Law("zero_mean", "output vectors have mean 0, with initial weights", claims("zero_mean"), _draw, _mean, SMALLER),
    Law("unit_rms", "output vectors have root mean square 1, with initial weights", claims("unit_rms"), _draw, _rms, SMALLER),
    Law("identity", "y = x", claims("identity"), _draw, _identity, SMALLER),
)  # fmt: skip
