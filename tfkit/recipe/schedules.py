"""Learning rates as functions of the step n, counted from 1.

noam           factor * d_model^-1/2 * min(n^-1/2, n * warmup^-3/2)        https://arxiv.org/abs/1706.03762, equation 3
inverse_sqrt   peak * min(n / warmup, (warmup / n)^1/2)                    the same shape, given by its peak
cosine         peak * n / warmup, then from peak to floor along half a cosine until step `steps`, then floor
linear         peak * n / warmup, then from peak to floor along a line until step `steps`, then floor
                                                                           https://arxiv.org/abs/1810.04805, appendix A.2
constant       peak * min(n / warmup, 1)
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import Field, model_validator

from ..slots.options import Entry, Options, Positive, Size

Warmup = Annotated[int, Field(ge=1, description="steps until the highest rate")]


class NoamOptions(Options):
    """The schedule of Vaswani et al. 2017. Its peak is factor * (d_model * warmup_steps)^-1/2."""

    factor: Annotated[Positive, Field(description="factor of the rate in the paper")] = 1.0
    warmup_steps: Warmup = 4000


class PeakOptions(Options):
    """`peak` is the highest learning rate, reached after `warmup_steps`."""

    peak: Annotated[Positive, Field(description="the highest learning rate")]
    warmup_steps: Warmup = 1


class DecayOptions(PeakOptions):
    """From `peak` to `floor`, which is reached at step `steps`."""

    steps: Annotated[Size, Field(description="the first step with the rate `floor`; more than `warmup_steps`")]
    floor: Annotated[float, Field(ge=0.0, description="the lowest learning rate, at most `peak`")] = 0.0

    @model_validator(mode="after")
    def _in_order(self) -> DecayOptions:
        if self.steps <= self.warmup_steps:
            raise ValueError(f"`steps` is {self.steps}, not more than `warmup_steps`, which is {self.warmup_steps}")
        if self.floor > self.peak:
            raise ValueError(f"`floor` is {self.floor}, more than `peak`, which is {self.peak}")
        return self


@dataclass(frozen=True, kw_only=True)
class Schedule(Entry):
    """`rate(options, step, d_model)` is the learning rate of a step, counted from 1."""

    rate: Callable[[Any, int, int], float]


def noam(options: NoamOptions, step: int, d_model: int) -> float:
    return (
        options.factor
        / math.sqrt(d_model)
        * min(1 / math.sqrt(step), step / options.warmup_steps / math.sqrt(options.warmup_steps))
    )


def inverse_sqrt(options: PeakOptions, step: int, d_model: int) -> float:
    return options.peak * min(step / options.warmup_steps, math.sqrt(options.warmup_steps / step))


def cosine(options: DecayOptions, step: int, d_model: int) -> float:
    if step <= options.warmup_steps:
        return options.peak * step / options.warmup_steps
    done = min((step - options.warmup_steps) / (options.steps - options.warmup_steps), 1.0)
    return options.floor + (options.peak - options.floor) * (1 + math.cos(math.pi * done)) / 2


def linear(options: DecayOptions, step: int, d_model: int) -> float:
    if step <= options.warmup_steps:
        return options.peak * step / options.warmup_steps
    left = max(options.steps - step, 0) / (options.steps - options.warmup_steps)
    return options.floor + (options.peak - options.floor) * left


def constant(options: PeakOptions, step: int, d_model: int) -> float:
    return options.peak * min(step / options.warmup_steps, 1.0)


SCHEDULES = (
    Schedule(name="noam", summary="the paper's: linear warm-up, then step^-1/2", options=NoamOptions, rate=noam),
    Schedule(name="inverse_sqrt", summary="linear warm-up to a peak, then step^-1/2", options=PeakOptions, rate=inverse_sqrt),
    Schedule(name="cosine", summary="linear warm-up to a peak, then half a cosine", options=DecayOptions, rate=cosine),
    Schedule(name="linear", summary="linear warm-up to a peak, then a line to the floor", options=DecayOptions, rate=linear),
    Schedule(name="constant", summary="linear warm-up to a peak, then the peak", options=PeakOptions, rate=constant),
)
