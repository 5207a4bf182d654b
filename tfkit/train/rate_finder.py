"""A sweep of learning rates before training: the rate grows exponentially, and the loss shows which rates learn.

https://arxiv.org/abs/1506.01186 (Smith), section 3.3
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from ..recipe import Recipe
from ..recipe.parts import Schedule
from ..slots.options import Component, NoOptions
from .step import NotFinite
from .trainer import Trainer

LOWEST, HIGHEST, STEPS = 1e-7, 1.0, 100
SMOOTHING = 0.9
"""The share of the mean of earlier losses in the smoothed loss."""
DIVERGED = 4.0
"""The sweep ends where the smoothed loss exceeds the smallest one so many times."""
FIRST = 10
"""Steps at the start, whose mean is of few losses, that no suggestion comes from."""


@dataclass(frozen=True)
class RatePoint:
    """A step of the sweep: its rate, its loss, and the loss smoothed over the steps so far."""

    rate: float
    loss: float
    smoothed: float


@dataclass(frozen=True)
class RateSweep:
    """The result of a sweep.

    Attributes:
        points: Its steps.
        suggestion: The rate at which the smoothed loss falls fastest; None if it never falls.
        lowest: The point with the smallest smoothed loss.
        ended: Why it ended.
    """

    points: tuple[RatePoint, ...]
    suggestion: float | None
    lowest: RatePoint
    ended: str

    @classmethod
    def of(cls, points: tuple[RatePoint, ...], ended: str) -> RateSweep:
        """The sweep with these points. The suggestion is the middle of the steepest fall between neighbours, before the lowest
        point; the steps are evenly spaced by the logarithm of the rate."""
        lowest = min(points, key=lambda point: point.smoothed)
        last = points.index(lowest)
        falls = {at: points[at].smoothed - points[at - 1].smoothed for at in range(FIRST, last + 1)}
        steepest = min(falls, key=lambda at: falls[at], default=None)
        falling = steepest is not None and falls[steepest] < 0
        return cls(points, points[steepest].rate if falling and steepest is not None else None, lowest, ended)


def sweeping(recipe: Recipe) -> Recipe:
    """The recipe with rates that grow from `LOWEST` to `HIGHEST` in `STEPS` steps, instead of its schedule."""

    def rate(options: NoOptions, step: int, d_model: int) -> float:
        return float(LOWEST * (HIGHEST / LOWEST) ** ((step - 1) / (STEPS - 1)))

    schedule = Schedule(name="sweep", summary="rates that grow exponentially", options=NoOptions, rate=rate)
    return recipe.model_copy(update={"schedule": Component(schedule, NoOptions())})


def sweep(trainer: Trainer) -> RateSweep:
    """Make the steps of a sweep with a trainer of a recipe from `sweeping`."""
    points: list[RatePoint] = []
    mean, ended = 0.0, f"{STEPS} steps are made"
    for number in range(1, STEPS + 1):
        try:
            step = trainer.step.run()
        except NotFinite as error:
            ended = str(error)
            break
        if trainer.step.epoch_complete:
            trainer.progress.epoch, trainer.progress.batch = trainer.progress.epoch + 1, 0
        if step is None:  # float16 gradients overflowed
            continue
        mean = SMOOTHING * mean + (1 - SMOOTHING) * step.loss
        smoothed = mean / (1 - SMOOTHING ** (len(points) + 1))
        points.append(RatePoint(step.rate, step.loss, smoothed))
        if number > FIRST and smoothed > DIVERGED * min(point.smoothed for point in points):
            ended = f"the loss is {DIVERGED:g} times the lowest one"
            break
    return RateSweep.of(tuple(points), ended)


def peak_setting(recipe: Recipe, rate: float, width: int) -> str:
    """The setting of a recipe's schedule whose highest rate is this one, in the form of `--set`."""
    if recipe.schedule.kind == "noam":
        return f"schedule.factor={rate * math.sqrt(width * recipe.schedule.options.warmup_steps):.3g}"
    return f"schedule.peak={rate:.3g}"
