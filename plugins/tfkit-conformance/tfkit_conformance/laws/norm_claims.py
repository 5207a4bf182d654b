"""What a norm claims of its mathematics. With eps added to a mean square s, a norm of a x differs from that of x by a relative

    |1 - sqrt((s + eps) / (s + eps / a^2))|  <=  eps / (2 s)           for a >= 1

so the laws are judged where s is 1 or more and the eps of the options is known; one that is not known counts as 1e-3.
"""

from __future__ import annotations

from random import Random
from typing import Any

import torch
from torch import Tensor, nn

from tfkit.slots.init import InitContext

from .example import LawExample
from .law import Law, PartUnderTest, Structure, claims
from .rounding import gamma

UNKNOWN_EPS = 1e-3


def _draw(subject: PartUnderTest, options: Any, random: Random) -> Structure:
    return {
        "width": random.choice((4, 7, 16, 33, 128)), "tokens": random.choice((1, 2, 4)),
        "power": random.choice((1, 2, 4, 6)), "shift": random.choice((1, 2, 8)),
    }  # fmt: skip


def _spread(trial: LawExample) -> Tensor:
    """Vectors of mean 0 and mean square 1 or more, in float64."""
    at = trial.at
    x = trial.normal(at["tokens"], at["width"], dtype=torch.float64)
    x = x - x.mean(-1, keepdim=True)
    x = x / x.square().mean(-1, keepdim=True).sqrt()
    return 2.0 * x


def _eps(trial: LawExample) -> float:
    found = getattr(trial.options, "eps", UNKNOWN_EPS)
    return float(found) if isinstance(found, (int, float)) else UNKNOWN_EPS


def _first(trial: LawExample) -> nn.Module:
    """The norm with weights as an untrained model has them."""
    width = trial.at["width"]
    module = trial.built(width)
    entry = trial.subject.catalogue.find("init", "xavier")
    for parameter in trial.entry.parameters(trial.options, width):
        drawn = entry.draw(entry.options(), parameter, InitContext(width, 1, 0))
        with torch.no_grad():
            module.get_parameter(parameter.name).fill_(drawn.centre)
    return module


def _sizes(module: nn.Module, output: Tensor) -> Tensor:
    """The largest number of each row, with those of the weights: what a rounding is a share of."""
    weights = max((float(p.detach().abs().max()) for p in module.parameters()), default=1.0)
    return output.detach().double().abs().amax(-1, keepdim=True) + weights


def _scale(trial: LawExample) -> float:
    module, x = trial.built(trial.at["width"]), _spread(trial).to(trial.dtype)
    factor = 2.0 ** trial.at["power"]
    one, other = module(x), module(x * factor)
    share = _eps(trial) / (2 * float(x.double().square().mean(-1).min()))
    bound = (2 * (3 * trial.unit + gamma(trial.at["width"] + 16)) + share) * _sizes(module, one) + trial.tiny
    return trial.within(f"the norm of {factor:g} x is not that of x", other, one, bound)


def _shift(trial: LawExample) -> float:
    """The sum is exact: numbers are multiples of 1/8, so that no rounding of the input hides or feigns anything."""
    module, at = trial.built(trial.at["width"]), trial.at
    x = (_spread(trial) * 8).round() / 8
    moved = x + at["shift"]
    exact = torch.equal(moved.to(trial.dtype).double(), moved) and torch.equal(x.to(trial.dtype).double(), x)
    if not exact:
        x = x.round()
        moved = x + at["shift"]
    one, other = module(x.to(trial.dtype)), module(moved.to(trial.dtype))
    deviation = x.var(-1, unbiased=False, keepdim=True).sqrt().clamp(min=0.1)
    grown = (x.abs().amax(-1, keepdim=True) + at["shift"]) / deviation
    bound = (6 * trial.unit + 2 * gamma(at["width"] + 16) * (1 + grown) ** 2) * _sizes(module, one) + trial.tiny
    return trial.within(f"the norm of x + {at['shift']} is not that of x", other, one, bound)


def _mean(trial: LawExample) -> float:
    module, x = _first(trial), (_spread(trial) + trial.at["shift"]).to(trial.dtype)
    y = module(x).double()
    size = y.abs().amax(-1) * (1 + x.double().abs().amax(-1))
    bound = (2 * trial.unit + 2 * gamma(trial.at["width"] + 16)) * size + trial.tiny
    return trial.within("the mean of an output vector is not 0", y.mean(-1), torch.zeros_like(y.mean(-1)), bound)


def _rms(trial: LawExample) -> float:
    module, x = _first(trial), (_spread(trial) * 2.0 ** trial.at["power"]).to(trial.dtype)
    y = module(x).double()
    share = _eps(trial) / (2 * float(x.double().square().mean(-1).min()))
    bound = torch.full_like(y.mean(-1), 1.01 * share + 3 * trial.unit + 2 * gamma(trial.at["width"] + 16))
    got = y.square().mean(-1).sqrt()
    return trial.within("the root mean square of an output vector is not 1", got, torch.ones_like(got), bound)


def _identity(trial: LawExample) -> None:
    module, x = trial.built(trial.at["width"]), _spread(trial).to(trial.dtype)
    trial.equal("y is not x", module(x), x)


SMALLER = {"tokens": 1, "width": 4, "power": 1, "shift": 1}
LAWS = (
    Law(
        "scale_invariant",
        "R36: the norm of a x is that of x, as far as eps allows",
        claims("scale_invariant"),
        _draw,
        _scale,
        SMALLER,
    ),
    Law("shift_invariant", "R36: the norm of x + c is that of x", claims("shift_invariant"), _draw, _shift, SMALLER),
    Law("zero_mean", "output vectors have mean 0, with first weights", claims("zero_mean"), _draw, _mean, SMALLER),
    Law("unit_rms", "output vectors have root mean square 1, with first weights", claims("unit_rms"), _draw, _rms, SMALLER),
    Law("identity", "y = x", claims("identity"), _draw, _identity, SMALLER),
)
